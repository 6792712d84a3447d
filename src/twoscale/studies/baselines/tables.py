"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (model, seed), and one per model for the mean over seeds: held-out cross-entropy of the looped model
    # at train.held_out_loops, of models without loops, and of the untrained looped model. Intervals are 95 % intervals.
    "baselines": table(
        "run model seed seeds layers parameters flops iteration tokens documents ce",
        model=("string", "looped; parameters or flops: without loops, with the same number of these; untrained"),
        seed=("int64", "seed; null for the mean over seeds"),
        seeds=("int32", "number of seeds that the row covers"),
        layers=("int32",),
        parameters=("int64",),
        flops=("float64", "training FLOPs per token at the mean loop count"),
        ce_low=("float64", "interval of ce over documents, lower end"),
        ce_high=("float64", "interval of ce over documents, upper end"),
        difference=("float64", "ce minus ce of the looped model with the same seed, on the same documents"),
        difference_low=("float64", "interval of the difference over documents; for the mean, also over seeds"),
        difference_high=("float64", "upper end of this interval"),
        documents_low=("float64", "interval of the difference over documents alone, lower end"),
        documents_high=("float64", "upper end of this interval"),
        seeds_low=("float64", "interval of the difference over seeds alone, lower end; null for one seed"),
        seeds_high=("float64", "upper end of this interval"),
    ),
}
