"""The config section of path independence."""

from twoscale.config.types import Count, OnHeldOut, key


class PathIndependenceConfig(OnHeldOut):
    """Repeated loops from different initial noise, with trajectories.loops loop steps."""

    draws: Count = key(
        3, "Additional draws of the noise, each compared with the run's original draw."
    )
    tokens: Count = key(2048, "Held-out tokens per checkpoint, in whole sequences.")


SECTIONS = {"path_independence": PathIndependenceConfig}
