"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import STATISTICS, Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (token, varied group, draw of the noise), each compared with the noise of the run itself.
    "token_independence": table(
        "iteration sequence document position",
        group=("string", 'whose noise is varied, or "all"'),
        draw=("int32", "number of the draw of the noise"),
        distance=("float32", "between the last states of the varied group"),
        distance_relative=("float32", "over the norm of that state"),
        kl=("float32", "nats, from the prediction under the run's noise to that under the draw"),
        agreement=("float32", "1 if both predict the same token, else 0"),
    ),
    "path_independence": table("run iteration group measure", **STATISTICS),
}
