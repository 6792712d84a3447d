"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # The claims over seeds. One row per measured quantity and seed, and one for the mean over seeds; the last rows of a
    # claim, scope "all", are the verdicts on the claim.
    "seeds": table(
        "run claim scope quantity seed value low high deviation document_error bounds verdict reason scale",
        quantity=("string", "measured quantity"),
        seed=("string", 'of the run, or "mean": over all seeds, the geometric mean of ratios'),
        value=("float64", "infinite if a length is not reached, null if nothing was measured"),
        low=("float64", "95 % interval: of one seed over documents or prompts, of the mean over documents and seeds"),
        high=("float64", "its other end"),
        deviation=("float64", "standard deviation between seeds, for ratios of the logarithm; only of the mean"),
        document_error=("float64", "standard error within one seed, due to the choice of documents; only of the mean"),
        verdict=("string", 'holds, does not hold, cannot be judged, not asked, or "per run" for the mean of times'),
        scale=("string", "small scale: less than half of the paper's tokens of training or parameters; else empty"),
    ),
}
