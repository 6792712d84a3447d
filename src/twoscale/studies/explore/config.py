"""Config of the study."""

from typing import TYPE_CHECKING

from twoscale.config.types import Count, Natural, Section, check_sequence, key

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class ExploreConfig(Section):
    """The page results/explore.html: tokens of one held-out sequence at the last checkpoint. Every group runs
    exits.max_loops loop steps; exits are shown for the criteria of `exits`.
    """

    sequence: Natural = key(0, "Index of the sequence among the sequences of trajectories.tokens.")
    tokens: Count = key(
        64, "Number of tokens to show from the start of the sequence. Each token adds about 10 kB to the page."
    )

    def check(self, config: "CoreConfig") -> None:
        check_sequence("explore.sequence", self.sequence, config)


SECTIONS = {"explore": ExploreConfig}
