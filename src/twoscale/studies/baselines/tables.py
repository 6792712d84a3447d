"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (model, seed), and one per model for the mean over seeds: held-out cross-entropy of the looped model
    # at train.held_out_loops, of models without loops, and of the untrained looped model. Intervals are of 95 %.
    "baselines": table(
        "run model seed seeds layers parameters flops iteration tokens documents ce",
        model=("string", "looped; parameters, flops: without loops, with as many of them; untrained"),
        seed=("int64", "null: mean over seeds"),
        seeds=("int32", "number of seeds that the row is about"),
        layers=("int32",),
        parameters=("int64",),
        flops=("float64", "of training, per token, at the mean loop count"),
        ce_low=("float64", "over documents"),
        ce_high=("float64", "over documents"),
        difference=("float64", "ce minus ce of the looped model with the same seed, on the same documents"),
        difference_low=("float64", "over documents, and in the row of the mean also over seeds"),
        difference_high=("float64", "over documents, and in the row of the mean also over seeds"),
        documents_low=("float64", "of the difference, over documents alone"),
        documents_high=("float64", "of the difference, over documents alone"),
        seeds_low=("float64", "of the difference, over seeds alone; null for one seed"),
        seeds_high=("float64", "of the difference, over seeds alone; null for one seed"),
    ),
}
