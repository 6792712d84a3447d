"""The tokens of several sequences that loop together in a group, each at its own loop step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from twoscale.exits.batched_cache import Step
from twoscale.exits.contract import Decisions
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.kv_cache import tensor_on
from twoscale.exits.token_exit import PatienceCounter, TokenExit, exit_after


@dataclass(frozen=True)
class Request:
    """A text to continue.

    Attributes:
        prompt: Token ids, at least one.
        max_new_tokens: Most tokens that follow; fewer where the text fills the model's context.
        choose: (logits (V,), position) -> the token at `position`, such as `Sampling.choose`.
        end_of_text: Token that ends the text, as its last one.
        sequence: Number of the held-out sequence whose noise is read; 0 for other text.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    choose: Callable[[Tensor, int], int]
    end_of_text: int | None = None
    sequence: int = 0


@dataclass(eq=False)
class Row:
    """The token in flight of one sequence.

    Attributes:
        place: Place of the sequence in the cache.
        number: Number of the request.
        remaining: Tokens that may still follow.
        position: Position of the token.
        k: Loop steps that it has taken in its group.
        patience: Counts the decisions in its group.
        exit: The result of its group, once the criterion has fired.
        evaluations: Of each group that it has left.
    """

    place: int
    number: int
    request: Request
    remaining: int
    position: int
    k: int = 0
    patience: PatienceCounter | None = None
    exit: TokenExit | None = None
    evaluations: list[int] = field(default_factory=list)

    def step(self) -> Step:
        return Step(self.place, self.k, self.position)

    def enter_group(self, criterion: ExitCriterion) -> None:
        self.k, self.patience, self.exit = 0, PatienceCounter(criterion.patience), None

    def decide(
        self, should_exit: bool, i: int, x: Tensor, x_new: Tensor, criterion: ExitCriterion, max_loops: int
    ) -> None:
        """Count the loop step of row i from x to x_new (N, C); exit if the criterion fires or it is the last one."""
        if self.exit is None and self.patience.exits(should_exit):
            self.exit = exit_after(self.k, x[i : i + 1], x_new[i : i + 1], criterion.keeps == "previous")
        self.k += 1
        if self.exit is None and self.k == max_loops:
            self.exit = TokenExit(x_new[i : i + 1], max_loops, max_loops)


@dataclass
class Looping:
    """Tokens that loop in a group, and row by row what their next step needs.

    `decisions` are those of consecutive rows. Rows whose states have one layout share a `Decisions`; a token that
    has just entered may have another layout than one that has been decided on before.
    """

    rows: list[Row]
    x: Tensor  # (N, C)
    injected: Tensor  # (N, C)
    decisions: list[Decisions]

    def join(self, other: "Looping") -> None:
        """Append the tokens of `other`."""
        self.rows += other.rows
        self.x, self.injected = (torch.cat(pair) for pair in ((self.x, other.x), (self.injected, other.injected)))
        self.decisions = _joined(self.decisions + other.decisions)

    def update(self, x_new: Tensor) -> list[bool]:
        """Which tokens the criterion lets exit after one more loop step, to x_new (N, C)."""
        parts = x_new.split([len(decisions) for decisions in self.decisions])
        should_exit = [decisions.update(part) for decisions, part in zip(self.decisions, parts, strict=True)]
        self.decisions = _joined(self.decisions)
        return torch.cat(should_exit).tolist()

    def keep(self, stays: Sequence[bool]) -> None:
        """Drop the tokens for which `stays` is false."""
        start = 0
        for decisions in self.decisions:
            part = stays[start : start + len(decisions)]
            start += len(part)
            decisions.keep(self._indices(part))
        self.decisions = [decisions for decisions in self.decisions if len(decisions)]
        self.rows = [row for row, stay in zip(self.rows, stays, strict=True) if stay]
        staying = self._indices(stays)
        self.x, self.injected = self.x[staying], self.injected[staying]

    def _indices(self, stays: Sequence[bool]) -> Tensor:
        return tensor_on([i for i, stay in enumerate(stays) if stay], self.x.device)


def _joined(parts: Sequence[Decisions]) -> list[Decisions]:
    """Neighbours whose states have one layout as one."""
    joined = list(parts[:1])
    for part in parts[1:]:
        if joined[-1].can_join(part):
            joined[-1].join(part)
        else:
            joined.append(part)
    return joined
