"""An exit criterion for each looped group, such as one criterion with another threshold in every group.

The paper names "learning per-block calibration for the exit rule" as future work (§5).
"""

from collections.abc import Mapping, Sequence

from twoscale.exits.criteria import CRITERIA, ExitCriterion, make_criterion


class PerGroup(ExitCriterion):
    """Holds one criterion per looped group, in the order of the groups. Engines take the one of a group.

    `start` and `update` are from the criterion of the group, and so are `keeps`, `patience` and `needs_gate`.
    """

    def __init__(self, criteria: Sequence[ExitCriterion]) -> None:
        self.criteria = tuple(criteria)
        # before a group is known, engines ask whether a text has to be read position by position
        self.needs_readout = any(criterion.needs_readout for criterion in self.criteria)  # type: ignore[misc]

    def of_group(self, group: int) -> ExitCriterion:
        return self.criteria[group].of_group(group)


def make_per_group(
    name: str, thresholds: Sequence[float], criteria: Mapping[str, type[ExitCriterion]] = CRITERIA
) -> PerGroup:
    """The criterion `name` of `criteria` with one threshold per looped group; an unknown name is an InputError."""
    return PerGroup([make_criterion(name, threshold, criteria) for threshold in thresholds])
