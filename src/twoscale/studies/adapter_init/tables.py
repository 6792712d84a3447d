"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (adapter initialisation, seed, checkpoint, group, measure), and the same over all seeds.
    "adapter_init": table(
        "share state_init sandwich seed iteration",
        share=("float64", "share of the state in the adapter initialisation; null for random weights"),
        state_init=("string", "initial state of a loop"),
        sandwich=("string", "position of the second norm"),
        seed=("string", 'seed, or "all" for the mean over the seeds'),
        group=("string", 'looped group, or "all" for the whole model'),
        measure=("string", "late_cosine, or held_out_loss in nats per token"),
        value=("float64", "null if it cannot be measured"),
        low=("float64", 'lower end of the 95 % interval over documents, and for "all" also over seeds'),
        high=("float64", "upper end of the interval"),
        verdict=("string", "verdict on a late cosine, by the bounds of claim 4"),
        reason=("string", "reason for the verdict, or for a missing value"),
    ),
}
