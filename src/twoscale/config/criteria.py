"""Exit criteria: a fact sheet for each that is built in, and what holds for all of them.

`twoscale.exits.criteria` has the class of each, under the same name. Nothing here needs torch.
"""

import math
from dataclasses import dataclass
from typing import Any

from twoscale.base import mismatch

BELOW, ABOVE = "<", "≥"

_STATE_GRID = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
_RELATIVE_GRID = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)
_PROBABILITY_GRID = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
_KL_GRID = (1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1)


@dataclass(frozen=True)
class Facts:
    """What holds of a criterion at every threshold.

    Attributes:
        exits: On which side of the threshold the statistic lets a token exit.
        grid: Thresholds of the arena, ascending.
        patience: Number of loop steps in a row at which the statistic has to say exit.
        keeps: Which state the token keeps: the one after the step that triggered the exit ("new")
            or the one before it ("previous").
        threshold: Type of the thresholds.
        label: Name in sentences, by default the criterion's name with spaces.
        colour: Name of its colour in figures, for the criteria of the paper.
        published: Threshold in the code of Geiping et al.
        is_primary: Whether it belongs to the primary family of the arena, which was fixed before
            any run: criteria of the paper and of Geiping et al.
        columns: Names of its statistic in tables of other programs, beside its own name.
    """

    exits: str
    grid: tuple[float, ...] = ()
    patience: int = 1
    keeps: str = "new"
    threshold: type = float
    label: str = ""
    colour: str = ""
    published: float | None = None
    is_primary: bool = False
    columns: tuple[str, ...] = ()


# In the order of docs and figures. Acceleration has the patience and the kept state of Algorithm 1.
# The columns are those of vLLM-Hook (IBM, pull request 30,
# benchmarks/recurrent_depth/trajectory_io.py), and of engines with a gate.
FACTS: dict[str, Facts] = {
    "fixed": Facts(exits=ABOVE, threshold=int),
    "step_norm": Facts(
        exits=BELOW,
        grid=_STATE_GRID,
        colour="blue",
        is_primary=True,
        columns=("hidden_delta",),
    ),
    "step_norm_relative": Facts(
        exits=BELOW,
        grid=_RELATIVE_GRID,
        is_primary=True,
        columns=("normalized_displacement",),
    ),
    "kl": Facts(
        exits=BELOW,
        grid=_KL_GRID,
        label="KL",
        colour="orange",
        is_primary=True,
        columns=("predictive_kl",),
    ),
    "acceleration": Facts(
        exits=BELOW,
        grid=_STATE_GRID,
        patience=2,
        keeps="previous",
        colour="green",
        is_primary=True,
    ),
    "acceleration_normalized": Facts(
        exits=BELOW,
        grid=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        patience=2,
        keeps="previous",
        columns=("normalized_acceleration",),
    ),
    "acceleration_relative": Facts(
        exits=BELOW,
        grid=_RELATIVE_GRID,
        patience=2,
        keeps="previous",
    ),
    "entropy_diff": Facts(
        exits=BELOW,
        grid=(1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3),
        published=1e-3,
        is_primary=True,
        columns=("entropy_delta",),
    ),
    "argmax_stability": Facts(
        exits=ABOVE,
        grid=(1, 2, 3, 5, 8, 12),
        threshold=int,
        published=5,
        is_primary=True,
        columns=("top1_stability",),
    ),
    "cosine": Facts(
        exits=BELOW,
        grid=(1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1),
        published=1e-3,
        is_primary=True,
        columns=("cosine_distance",),
    ),
    "minp_kl": Facts(
        exits=BELOW,
        grid=_KL_GRID,
        label="min-p KL",
        published=1e-5,
        is_primary=True,
    ),
    "confidence": Facts(exits=ABOVE, grid=_PROBABILITY_GRID, columns=("top1_confidence",)),
    "margin": Facts(exits=ABOVE, grid=_PROBABILITY_GRID, columns=("logit_margin",)),
    "entropy": Facts(exits=BELOW, grid=(0.03, 0.1, 0.3, 0.7, 1.5, 2.5, 3.5, 4.5, 6.0)),
    "exit_gate": Facts(exits=ABOVE, columns=("native_gate",)),
}

# Name of a column of numbers in a table -> the criterion whose statistic it is.
CRITERIA_OF_COLUMNS = {
    column: name for name, facts in FACTS.items() for column in (name, *facts.columns)
}


def criterion_name(criterion: str) -> str:
    """The name of a criterion in sentences, also of a user's."""
    facts = FACTS.get(criterion)
    return (facts and facts.label) or criterion.replace("_", " ")


def counts_loops(criterion: str) -> bool:
    """Whether the thresholds of a criterion are whole numbers."""
    return criterion in FACTS and FACTS[criterion].threshold is int


class Patience:
    """Counts for how many loop steps in a row a criterion says exit, of one token or of N.

    A token leaves where this is `steps` for the first time.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._streak: Any = 0

    def ends(self, says_exit: Any) -> Any:
        """Whether a token leaves at the next loop step: bools, of the shape of `says_exit`.

        `says_exit` is one bool, or an array or a tensor (N,) of them.
        """
        self._streak = (self._streak + 1) * says_exit
        return self._streak == self._steps

    def keep(self, rows: Any) -> None:
        """Drop all tokens but `rows`."""
        self._streak = self._streak[rows]


def check_threshold(
    criterion: str, threshold: Any, max_loops: int | None, where: str, loops_key: str
) -> None:
    """Refuse a threshold that is no positive number of the criterion's type, or too many loops.

    The sentence begins with `where`, such as the key of the threshold, and calls `max_loops`, the
    limit of `fixed`, by its key `loops_key`.
    """
    is_whole = counts_loops(criterion)
    allowed = int if is_whole else int | float
    is_number = isinstance(threshold, allowed) and not isinstance(threshold, bool)
    if not is_number or not 0 < threshold < math.inf:
        expected = "a whole number of loops" if is_whole else "a number"
        raise mismatch(where, repr(threshold), f"{expected} > 0")
    if criterion == "fixed" and max_loops is not None and threshold > max_loops:
        raise mismatch(where, threshold, f"at most {loops_key} = {max_loops}")
