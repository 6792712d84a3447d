"""Exit rules: when a token stops looping (paper §4; Geiping et al. for the baselines).

A rule is a small class. It sees the states of one token after another loop step and says whether the token
leaves:

    start(x0) -> state               x0 (N, C): the N tokens that enter a group
    update(state, x_new) -> (exit, state)   x_new (N, C): their states after one more step; exit (N,) bool

`state` is a dict of tensors whose first axis is the tokens, so an engine can keep the rows of those that
still loop. The rule object itself never changes; one serves all groups.

Class attributes: `returns` says which state a leaving token keeps, the one from before the step that
triggered ("previous") or the one after ("new"); `hits` how many steps in a row have to meet the threshold;
`needs_decoder` whether the rule looks at predictions.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from twoscale import measures
from twoscale.errors import InputError

State = dict[str, Tensor]
Decode = Callable[[Tensor], Tensor]  # states (N, C) -> logits (N, V)


class Rule:
    """Base of the rules: a threshold tau > 0, and the model's decoder for those that need it."""

    returns: ClassVar[str] = "new"
    hits: ClassVar[int] = 1
    needs_decoder: ClassVar[bool] = False

    def __init__(self, threshold: float, decode: Decode) -> None:
        self.threshold = threshold
        self.decode = decode

    def start(self, x0: Tensor) -> State:
        raise NotImplementedError

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        raise NotImplementedError


class Fixed(Rule):
    """Leaves after a fixed number of loop steps, its threshold; at the budget, the full-compute reference."""

    def start(self, x0: Tensor) -> State:
        return {"steps": torch.zeros(len(x0), dtype=torch.int64, device=x0.device)}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        steps = state["steps"] + 1
        return steps >= self.threshold, {"steps": steps}


class StepNorm(Rule):
    """||x^{k+1} - x^k|| < tau (Eq. 3). O(C) per token and step; keeps the last state."""

    def start(self, x0: Tensor) -> State:
        return {"x": x0}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        return measures.norm(x_new - state["x"]) < self.threshold, {"x": x_new}


class KL(Rule):
    """KL(p^k || p^{k-1}) < tau with p^k decoded from x^k (Eq. 4), from k = 1 on; p^0 is decoded from x^0.

    O(V C) per token and step for the head; keeps the last log-probabilities, without the padded vocabulary.
    """

    needs_decoder = True

    def start(self, x0: Tensor) -> State:
        return {"log_p": self._log_probabilities(x0)}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        log_p = self._log_probabilities(x_new)
        divergence = (log_p.exp() * (log_p - state["log_p"])).sum(-1)
        return divergence < self.threshold, {"log_p": log_p}

    def _log_probabilities(self, x: Tensor) -> Tensor:
        return self.decode(x).log_softmax(-1)


class Acceleration(Rule):
    """a^k = ||update^k - update^{k-1}|| < tau at two successive steps (Eq. 5, Algorithm 1).

    O(C) per token and step; keeps the last state, the last update and whether the last a^k was small. The
    first a^k exists at k = 1, so the earliest exit is at k = 2, after three evaluations. As in Algorithm 1
    the step that triggers is thrown away: the token keeps x^k.
    """

    returns = "previous"
    hits = 2

    def start(self, x0: Tensor) -> State:
        # an infinite update before the first one makes the first a^k infinite, never small
        return {
            "x": x0,
            "update": torch.full_like(x0, torch.inf),
            "small": torch.zeros(len(x0), dtype=torch.bool, device=x0.device),
        }

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        update = x_new - state["x"]
        small = measures.acceleration(update, state["update"]) < self.threshold
        return small & state["small"], {"x": x_new, "update": update, "small": small}


RULES: dict[str, type[Rule]] = {
    "fixed": Fixed,
    "step_norm": StepNorm,
    "kl": KL,
    "acceleration": Acceleration,
}


def make_rule(name: str, threshold: float, decode: Decode) -> Rule:
    """The rule `name` at `threshold`; an unknown name is an InputError."""
    if name not in RULES:
        raise InputError(f"exit rule '{name}': unknown, expected one of {', '.join(RULES)}.")
    return RULES[name](threshold, decode)


def keep_rows(state: State, rows: Tensor) -> State:
    """The state of the tokens that `rows` (indices or a mask over tokens) selects."""
    return {name: values[rows] for name, values in state.items()}
