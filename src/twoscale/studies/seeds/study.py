"""The run under several seeds: the verdicts on the claims under each seed and over all of them."""

from twoscale.figures.catalogue import Figure, inputs_from
from twoscale.tables import table as columns

TABLES = {
    # The claims over seeds: one row per measured quantity and seed, and one per quantity for the
    # mean over seeds; the last rows of a claim are the verdicts under each reading, with the scope
    # "reading", and on the claim, with the scope "all".
    "seeds": columns(
        "run claim scope quantity role reading seed value low high deviation document_error bounds"
        " verdict reason scale",
        quantity=("string", "measured quantity"),
        role=("string", "its part in the verdict, as in the table claims"),
        reading=("string", "the only reading of the claim that the number belongs to"),
        seed=("string", 'seed of the run, or "mean" over all seeds, geometric for ratios'),
        value=("float64", "infinite if a length is not reached; null if nothing was measured"),
        low=(
            "float64",
            "95 % interval: for a seed, over documents or prompts; for the mean, over documents"
            " and seeds",
        ),
        high=("float64", "upper end of the interval"),
        deviation=(
            "float64",
            "in the row of the mean: standard deviation between seeds, of logarithms for ratios",
        ),
        document_error=(
            "float64",
            "in the row of the mean: standard error over the documents under one seed",
        ),
        verdict=(
            "string",
            'as in the table claims, or "per run" for means of times',
        ),
        scale=(
            "string",
            "small scale: less than half of the paper's training tokens or parameters; otherwise"
            " empty. In the row of a verdict also whether its numbers move towards the paper",
        ),
    ),
}
FIGURES = (
    Figure(
        "seeds",
        inputs_from("seeds"),
        page=True,
        target="seeds",
        title="Seeds: verdicts and spread",
        seeds=True,
        study="seeds",
        compared=True,
    ),
)
