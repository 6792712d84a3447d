"""The exit of one token from a looped group."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from twoscale.exits.criteria import ExitCriterion

Decided = tuple[int, Tensor, Tensor | bool]  # k, x^{k+1} or the mean so far (1, C), and whether the criterion says exit


@dataclass
class TokenExit:
    """The result of one group for one token: its state (1, C), loop steps and evaluations.

    After captured steps the state is in memory that the next replay may overwrite.
    """

    state: Tensor
    loop_steps: int
    evaluations: int


def first_exit(steps: Iterable[Decided], criterion: ExitCriterion, x: Tensor, max_loops: int) -> TokenExit:
    """The exit of a token that enters with the state x (1, C): where the criterion fires, or after all its steps."""
    streak = 0  # loop steps in a row at which the criterion said exit
    for k, x_new, should_exit in steps:
        streak = streak + 1 if should_exit else 0
        if streak == criterion.patience:
            return TokenExit(x, k, k + 1) if criterion.keeps == "previous" else TokenExit(x_new, k + 1, k + 1)
        x = x_new
    return TokenExit(x, max_loops, max_loops)
