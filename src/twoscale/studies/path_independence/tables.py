"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import STATISTICS, Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (token, varied group, draw of the noise), each compared with the run's own noise.
    "token_independence": table(
        "iteration sequence document position",
        group=("string", 'looped group whose noise is varied, or "all"'),
        draw=("int32", "number of the noise draw"),
        distance=("float32", "distance between the last states of the varied group"),
        distance_relative=("float32", "distance divided by the norm of this state"),
        kl=(
            "float32",
            "KL divergence in nats from the prediction with the run's noise to the prediction with the draw",
        ),
        agreement=("float32", "1 if both predictions have the same most likely token, otherwise 0"),
    ),
    "path_independence": table("run iteration group measure", **STATISTICS),
}
