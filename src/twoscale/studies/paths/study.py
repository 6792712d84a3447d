"""Types of the paths of tokens, and path independence: results/path_types.pdf and
path_independence.pdf.
"""

from twoscale.figures.catalogue import Figure, inputs_from
from twoscale.tables import STATISTICS, Column
from twoscale.tables import table as columns

TABLES: dict[str, dict[str, Column]] = {
    # One row per (token, varied group, draw of the noise), each compared with the run's own noise.
    "token_independence": columns(
        "iteration sequence document position",
        group=("string", 'looped group whose noise is varied, or "all"'),
        draw=("int32", "number of the noise draw"),
        distance=("float32", "distance between the last states of the varied group"),
        distance_relative=("float32", "distance divided by the norm of this state"),
        kl=(
            "float32",
            "KL divergence in nats from the prediction with the run's noise to the prediction"
            " with the draw",
        ),
        agreement=("float32", "1 if both predictions have the same most likely token, otherwise 0"),
    ),
    "path_independence": columns("run iteration group measure", **STATISTICS),
}

FIGURES = (
    Figure(
        "path_types",
        inputs_from("path_types", "path_metrics"),
        claims=(13,),
        sentence="twoscale.studies.paths.draw.types_sentence",
    ),
    Figure(
        "path_independence",
        inputs_from("path_independence"),
        values=lambda config: {"dtype": config.trajectories.dtype},
        noise=True,
        sentence="twoscale.studies.paths.draw.independence_sentence",
    ),
)
