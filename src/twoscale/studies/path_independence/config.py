"""Config of the study."""

from typing import TYPE_CHECKING

from twoscale.config.types import Count, Section, key

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class PathIndependenceConfig(Section):
    """Repeated loops from other noise, with the number of loop steps of trajectories.loops."""

    draws: Count = key(3, "Additional draws of the noise, each compared with the run's own draw.")
    tokens: Count = key(2048, "Held-out tokens per checkpoint, in whole sequences.")

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"tokens": config.sequences("path_independence")}


SECTIONS = {"path_independence": PathIndependenceConfig}
