"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # Adapter initialisations: one row per (start, seed, checkpoint, group, measure), and the same over all seeds.
    "adapter_init": table(
        "share state_init sandwich seed iteration",
        share=("float64", "of the state at the adapter initialisation; null for random weights"),
        state_init=("string", "first state of a loop"),
        sandwich=("string", "position of the second norm"),
        seed=("string", 'or "all": the mean over the seeds'),
        group=("string", 'or "all": the whole model'),
        measure=("string", "late_cosine, or held_out_loss in nats per token"),
        value=("float64", "null if it cannot be measured"),
        low=("float64", '95 % interval over documents, and over seeds for "all"'),
        high=("float64", "95 % interval"),
        verdict=("string", "of a late cosine, by the bounds of claim 4"),
        reason=("string", "of the verdict, or why there is no value"),
    ),
}
