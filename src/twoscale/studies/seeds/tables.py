"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # The claims over seeds: one row per measured quantity and seed, and one per quantity for the mean over seeds; the
    # last rows of a claim, scope "all", are the verdicts on the claim.
    "seeds": table(
        "run claim scope quantity seed value low high deviation document_error bounds verdict reason scale",
        quantity=("string", "measured quantity"),
        seed=("string", 'seed of the run, or "mean" over all seeds, geometric for ratios'),
        value=("float64", "infinite if a length is not reached; null if nothing was measured"),
        low=("float64", "95 % interval: for a seed, over documents or prompts; for the mean, over documents and seeds"),
        high=("float64", "upper end of the interval"),
        deviation=(
            "float64",
            "standard deviation between seeds, for ratios in logarithms; only in the row of the mean",
        ),
        document_error=(
            "float64",
            "standard error due to the choice of documents under one seed; only in the row of the mean",
        ),
        verdict=("string", 'holds, does not hold, cannot be judged, not asked, or "per run" for means of times'),
        scale=("string", "small scale: less than half of the paper's training tokens or parameters; otherwise empty"),
    ),
}
