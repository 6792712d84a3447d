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


def exit_after(k: int, x: Tensor, x_new: Tensor, keeps_previous: bool) -> TokenExit:
    """The exit at loop step k, which led from x to x_new (1, C)."""
    return TokenExit(x, k, k + 1) if keeps_previous else TokenExit(x_new, k + 1, k + 1)


class PatienceCounter:
    """Counts for one token the loop steps in a row at which its criterion said exit."""

    def __init__(self, patience: int) -> None:
        self.patience, self.count = patience, 0

    def exits(self, should_exit: bool) -> bool:
        """Whether the token exits after one more loop step."""
        self.count = self.count + 1 if should_exit else 0
        return self.count == self.patience


def first_exit(steps: Iterable[Decided], criterion: ExitCriterion, x: Tensor, max_loops: int) -> TokenExit:
    """The exit of a token that enters with the state x (1, C): where the criterion fires, or after all its steps."""
    patience, keeps_previous = PatienceCounter(criterion.patience), criterion.keeps == "previous"
    for k, x_new, should_exit in steps:
        if patience.exits(should_exit):
            return exit_after(k, x, x_new, keeps_previous)
        x = x_new
    return TokenExit(x, max_loops, max_loops)
