"""Exit criteria: when a token stops looping (paper §4; Geiping et al. for the baselines).

A rule is a small class. It sees the states of one token after another loop step and says whether the token
leaves:

    start(x0) -> state               x0 (N, C): the N tokens that enter a group
    update(state, x_new) -> (met, state)   x_new (N, C): their states after one more step; met (N,) bool

`state` is a dict of tensors whose first axis is the tokens, so an engine can keep the rows of those that
still loop. What tokens did is in there alone, never in the rule; one object serves all groups.

Class attributes: `patience` says at how many steps in a row the threshold has to be met before a token leaves;
`returns` which state it keeps, the one from before the step that triggered ("previous") or the one after
("new"); `needs_readout` whether the rule looks at predictions.
"""

import importlib.util
import math
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from twoscale.dynamics import measures
from twoscale.errors import InputError, first_line

State = dict[str, Tensor]
Decode = Callable[[Tensor], Tensor]  # states (N, C) -> logits (N, V)

KEEPS = ("previous", "new")
CACHED_NUMBERS = 2**18  # floats that stay in a core's cache


class ExitCriterion:
    """Base of the criteria: a threshold tau > 0, and the model's decoder for those that need it."""

    keeps: ClassVar[str] = "new"
    patience: ClassVar[int] = 1
    needs_readout: ClassVar[bool] = False

    def __init__(self, threshold: float, decode: Decode) -> None:
        self.threshold = threshold
        self.decode = decode
        self._limit: Tensor | None = None  # the threshold, as a tensor like what is compared with it

    def below(self, statistic: Tensor) -> Tensor:
        """Whether a statistic (N,) of each token is less than the threshold: (N,) bool.

        For a single token, making a tensor of the threshold costs as much as comparing, so it is kept: a rule
        serves one model, in one dtype and on one device.
        """
        if self._limit is None:
            self._limit = statistic.new_tensor([self.threshold])
        return statistic < self._limit

    def start(self, x0: Tensor) -> State:
        raise NotImplementedError

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        raise NotImplementedError


class Fixed(ExitCriterion):
    """Leaves after a fixed number of loop steps, its threshold; at the budget, the full-compute reference.

    O(1) per token and step; keeps the number of steps.
    """

    def start(self, x0: Tensor) -> State:
        return {"steps": torch.zeros(len(x0), dtype=torch.int64, device=x0.device)}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        steps = state["steps"] + 1
        return steps >= self.threshold, {"steps": steps}


class StepNorm(ExitCriterion):
    """||x^{k+1} - x^k|| < tau (Eq. 3). One hit, O(C) per token and step; keeps the last state."""

    def start(self, x0: Tensor) -> State:
        return {"x": x0}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        return self.below(self.size(state["x"], x_new)), {"x": x_new}

    def size(self, x: Tensor, x_new: Tensor) -> Tensor:
        """What is compared with the threshold, for states before and after a step: (N, C) twice -> (N,)."""
        return measures.norm(x_new - x)


class StepNormRelative(StepNorm):
    """||x^{k+1} - x^k|| / (||x^k|| + eps) < tau (§4, the normalized variant of the step norm).

    One hit, O(C), keeps the last state. Geiping's `latent-diff` (default 0.03) divides by the new state.
    """

    def size(self, x: Tensor, x_new: Tensor) -> Tensor:
        return measures.relative(super().size(x, x_new), x)


class Cosine(StepNorm):
    """1 - cos(x^{k+1}, x^k) < tau: the angle between states, not between updates (Geiping's code, default 1e-3).

    One hit, O(C), keeps the last state. A state of norm zero has no angle and never meets the threshold.
    """

    def size(self, x: Tensor, x_new: Tensor) -> Tensor:
        return 1 - measures.cosine(x_new, x)


class KL(ExitCriterion):
    """KL(p^k || p^{k-1}) < tau with p^k decoded from x^k (Eq. 4), from k = 1 on; p^0 is decoded from x^0.

    One hit, O(V C) per token and step for the head; keeps the last log-probabilities, without the padded
    vocabulary. Geiping's code has the other direction and starts from the uniform distribution (default 1e-3);
    the paper's equation is what stands here.
    """

    needs_readout = True

    def start(self, x0: Tensor) -> State:
        return {"log_p": self.log_probabilities(x0)}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        log_p = self.log_probabilities(x_new)
        return self.below(divergence(log_p, state["log_p"])), {"log_p": log_p}

    def log_probabilities(self, x: Tensor) -> Tensor:
        return self.decode(x).log_softmax(-1)


class MinPKL(ExitCriterion):
    """KL(q^{k-1} || q^k) < tau with q^k the min-p filtered prediction of x^k (Geiping's code, default 1e-5).

    Probabilities below a tenth of the largest are set to 1 / V, then all are normalised; q^0 is uniform. One
    hit, O(V C) per token and step and one more decoded state at the start, which tells V; keeps log q.
    """

    needs_readout = True
    KEPT_SHARE = 0.1

    def start(self, x0: Tensor) -> State:
        vocabulary = self.decode(x0[:1]).shape[-1]
        return {"log_q": x0.new_full((1, 1), -math.log(vocabulary)).expand(len(x0), vocabulary)}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        log_q = self.filtered(self.decode(x_new))
        return self.below(divergence(state["log_q"], log_q)), {"log_q": log_q}

    def filtered(self, logits: Tensor) -> Tensor:
        """Logits (N, V) -> log-probabilities (N, V) after the filter."""
        p = logits.softmax(-1)
        q = p.masked_fill(p < self.KEPT_SHARE * p.amax(-1, keepdim=True), 1 / p.shape[-1])
        return (q / q.sum(-1, keepdim=True)).log()


class EntropyDiff(ExitCriterion):
    """|H(p^k) - H(p^{k-1})| < tau, entropies in nats (Geiping's code, default 1e-3).

    One hit, O(V C) per token and step; keeps the last entropy. It starts from 100, which no distribution
    over a vocabulary has, so at an ordinary threshold the earliest exit is after the second step.
    """

    needs_readout = True
    START = 100.0
    INSIDE_LOG = 1e-10

    def start(self, x0: Tensor) -> State:
        return {"entropy": x0.new_full((len(x0),), self.START)}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        entropy = self.entropy(x_new)
        return self.below((entropy - state["entropy"]).abs()), {"entropy": entropy}

    def entropy(self, x: Tensor) -> Tensor:
        p = self.decode(x).softmax(-1)
        return -torch.linalg.vecdot(p, (p + self.INSIDE_LOG).log())


class ArgmaxStability(ExitCriterion):
    """The predicted token stayed the same at tau steps in a row, tau a whole number (Geiping's code, default 5).

    O(V C) per token and step; keeps the last prediction and how often it was repeated. The first step has
    nothing to repeat, so the earliest exit is after tau + 1 steps.
    """

    needs_readout = True

    def start(self, x0: Tensor) -> State:
        count = torch.zeros(len(x0), dtype=torch.int64, device=x0.device)
        return {"token": count - 1, "repeats": count}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        token = self.decode(x_new).argmax(-1)
        repeats = torch.where(token == state["token"], state["repeats"] + 1, 0)
        return repeats >= self.threshold, {"token": token, "repeats": repeats}


class Acceleration(ExitCriterion):
    """a^k = ||update^k - update^{k-1}|| < tau at two successive steps (Eq. 5, Algorithm 1).

    O(C) per token and step; keeps the last state and the last update. The first a^k exists at k = 1, so the
    earliest exit is at k = 2, after three evaluations. As in Algorithm 1 the step that triggers is thrown
    away: the token keeps x^k.
    """

    keeps = "previous"
    patience = 2

    def start(self, x0: Tensor) -> State:
        # an infinite update before the first one makes the first size infinite or NaN, never small
        return {"x": x0, "update": torch.full_like(x0, torch.inf)}

    def update(self, state: State, x_new: Tensor) -> tuple[Tensor, State]:
        update = x_new - state["x"]
        return self.below(self.size(state["x"], update, state["update"])), {"x": x_new, "update": update}

    def size(self, x: Tensor, update: Tensor, previous: Tensor) -> Tensor:
        """What is compared with the threshold, for a state, the update from it and the one before: (N,)."""
        return measures.acceleration(update, previous)


class AccelerationNormalized(Acceleration):
    """a^k over the sum of both step norms < tau at two successive steps (Eq. 6). Else as `acceleration`.

    It measures how straight and even the steps are, not how small: a geometric contraction by c keeps it at
    (1 - c) / (1 + c) for ever.
    """

    def size(self, x: Tensor, update: Tensor, previous: Tensor) -> Tensor:
        return measures.acceleration_normalized(update, previous)


class AccelerationRelative(Acceleration):
    """a^k / (||x^k|| + eps) < tau at two successive steps (the other denominator named below Eq. 6).

    Else as `acceleration`.
    """

    def size(self, x: Tensor, update: Tensor, previous: Tensor) -> Tensor:
        return measures.relative(super().size(x, update, previous), x)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats of two sets of distributions given by their logarithms: (N, V) twice -> (N,).

    On the CPU a few rows at a time, whose intermediate results stay in the cache: three times as fast.
    """
    rows = max(1, CACHED_NUMBERS // log_p.shape[-1])
    if log_p.is_cuda or len(log_p) <= rows:
        return torch.linalg.vecdot(log_p.exp(), log_p - log_q)
    pairs = zip(log_p.split(rows), log_q.split(rows), strict=True)
    return torch.cat([torch.linalg.vecdot(p.exp(), p - q) for p, q in pairs])


CRITERIA: dict[str, type[ExitCriterion]] = {
    "fixed": Fixed,
    "step_norm": StepNorm,
    "step_norm_relative": StepNormRelative,
    "kl": KL,
    "acceleration": Acceleration,
    "acceleration_normalized": AccelerationNormalized,
    "acceleration_relative": AccelerationRelative,
    "entropy_diff": EntropyDiff,
    "argmax_stability": ArgmaxStability,
    "cosine": Cosine,
    "minp_kl": MinPKL,
}


def make_criterion(name: str, threshold: float, decode: Decode, criteria: Mapping[str, type[ExitCriterion]] = CRITERIA) -> ExitCriterion:
    """The rule `name` of `rules` at `threshold`; an unknown name is an InputError."""
    check_name(name, criteria)
    return rules[name](threshold, decode)


def check_name(name: str, criteria: Mapping[str, type[ExitCriterion]]) -> None:
    if name not in criteria:
        raise InputError(f"exit rule '{name}': unknown, expected one of {', '.join(criteria)}.")


def configured_criteria(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, type[ExitCriterion]]:
    """The built-in criteria, and those of the user: entries of `exits.criteria` that name a file and a class."""
    return CRITERIA | {
        name: load_criterion(entry["file"], entry["class"]) for name, entry in entries.items() if "file" in entry
    }


def load_criterion(file: str, name: str) -> type[ExitCriterion]:
    """The class `name` of a Python file, refused with an InputError where it is no exit criterion."""
    made = getattr(_load_module(file), name, None)
    if made is None:
        raise InputError(f"exit rule file {file}: found no class '{name}', expected the one that is asked for.")
    if not (isinstance(made, type) and issubclass(made, ExitCriterion)):
        raise InputError(f"exit rule file {file}: '{name}' is no exit criterion, expected a class that inherits from Rule.")
    for method in ("start", "update"):
        if getattr(made, method) is getattr(ExitCriterion, method):
            raise InputError(f"exit rule file {file}: class '{name}' lacks the method {method}, expected one.")
    if made.keeps not in KEEPS:
        raise InputError(
            f"exit rule file {file}: class '{name}' has keeps = {made.keeps!r}, expected one of "
            f"{', '.join(KEEPS)}."
        )
    return made


def _load_module(file: str) -> ModuleType:
    if not Path(file).is_file():
        raise InputError(f"exit rule file {file}: found no such file, expected Python code with the rule's class.")
    spec = importlib.util.spec_from_file_location(
        "users_exit_rule", file, loader=SourceFileLoader("users_exit_rule", file)
    )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code may raise
        raise InputError(
            f"exit rule file {file}: does not import ({type(error).__name__}: {first_line(error)}), expected Python "
            "code that does."
        ) from error
    return module


def keep_rows(state: State, rows: Tensor) -> State:
    """The state of the tokens that `rows` (indices or a mask over tokens) selects."""
    return {name: values[rows] for name, values in state.items()}


class PatienceCounter:
    """LoopCounts for one token at how many steps in a row the threshold was met."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.found = wanted, 0

    def reached(self, met: bool) -> bool:
        """Whether the token leaves after one more step, which met the threshold or did not."""
        self.found = self.found + 1 if met else 0
        return self.found == self.wanted
