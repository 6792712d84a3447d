"""Exit criteria: when a token stops looping (paper §4; Geiping et al. for the baselines).

A criterion is a small class. It sees the states of the tokens that still loop, one row a token, and
decides which of them exit:

    start(x0) -> state
        x0 (N, C): the N tokens that enter a group
    update(state, x_new, readout) -> (should_exit, state)
        x_new (N, C): their states after one more loop step

`should_exit` is a bool tensor (N,) on the device of the states. `state` is a dict of tensors whose
first axis is the tokens, so an engine can keep the rows of those that still loop. All per-token
state is in this dict; criteria hold none, so one object serves all groups. A decision on a token
depends on its own row only, so a text may be evaluated in parallel or token by token. `readout`
turns states (N, C) into logits (N, V); the engine passes it, and it costs nothing unless it is
called. `twoscale.exits.contract` checks what a criterion returns.

Class attributes: `patience` is the number of loop steps in a row at which `update` has to say exit
before a token exits; the engine counts them. `keeps` says which state the token keeps, the one
before the step that triggered the exit ("previous") or the one after it ("new"). `needs_readout`
says whether the criterion calls `readout`. A criterion with `needs_gate` gets the model's exit gate
in place of the readout: states (N, C) -> probabilities of exit (N,).

A criterion that keeps a "weighted" mean of the states after its loop steps (ACT, PonderNet) returns
(should_exit, state, weight) from `update`: the weight (N,) of x_new, in its dtype. The engine sums
up weighted states. The state of the exit, or of the last loop step, gets what is left of a weight
of 1, and no weight is larger than that.
"""

import math
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from twoscale.base import InputError, did_you_mean, first_line
from twoscale.config.criteria import FACTS
from twoscale.dynamics.vectors import (
    acceleration,
    acceleration_normalized,
    cosine,
    kl_divergence,
    norm,
    relative,
)
from twoscale.model.interface import Readout
from twoscale.model.loss import entropies

State = dict[str, Tensor]


class ExitCriterion:
    """Base class of the criteria, with a threshold tau > 0.

    `file` is the user's file that defines a criterion.
    """

    file: ClassVar[str | None] = None
    keeps: ClassVar[str] = "new"  # or "previous" or "weighted"
    patience: ClassVar[int] = 1
    needs_readout: ClassVar[bool] = False
    needs_gate: ClassVar[bool] = False

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def below(self, statistic: Tensor) -> Tensor:
        """Whether the statistic (N,) of each token is less than the threshold: (N,) bool.

        The threshold is rounded to the dtype of the statistic.
        """
        return statistic < self.threshold

    def of_group(self, group: int) -> "ExitCriterion":
        """The criterion of this looped group: by default the same in all groups."""
        return self

    def start(self, x0: Tensor) -> State:
        """The per-token state before the first loop step, for the initial states x0 (N, C)."""
        raise NotImplementedError

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        """Which tokens exit after one more loop step, (N,) bool, and the new per-token state."""
        raise NotImplementedError


CRITERIA: dict[str, type[ExitCriterion]] = {}


def register(name: str) -> Callable[[type[ExitCriterion]], type[ExitCriterion]]:
    """Class decorator: a built-in criterion under the name that `exits.criteria` gives it.

    Its patience and the state that it keeps are in its fact sheet (`twoscale.config.criteria`),
    which is read without torch, too.
    """

    def add(criterion: type[ExitCriterion]) -> type[ExitCriterion]:
        criterion.patience = FACTS[name].patience
        criterion.keeps = FACTS[name].keeps
        CRITERIA[name] = criterion
        return criterion

    return add


@register("fixed")
class Fixed(ExitCriterion):
    """Exits after a fixed number of loop steps, its threshold; at `max_loops` it is full depth.

    O(1) per token and loop step.
    """

    def start(self, x0: Tensor) -> State:
        return {"loop_steps": torch.zeros(len(x0), dtype=torch.int64, device=x0.device)}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        loop_steps = state["loop_steps"] + 1
        return loop_steps >= self.threshold, {"loop_steps": loop_steps}


@register("step_norm")
class StepNorm(ExitCriterion):
    """||x^{k+1} - x^k|| < tau (Eq. 3). O(C) per token and loop step."""

    def start(self, x0: Tensor) -> State:
        return {"x": x0}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        return self.below(self.statistic(state["x"], x_new)), {"x": x_new}

    def statistic(self, x: Tensor, x_new: Tensor) -> Tensor:
        """The statistic below tau, of the states before and after a step: (N, C) twice -> (N,)."""
        return norm(x_new - x)


@register("step_norm_relative")
class StepNormRelative(StepNorm):
    """||x^{k+1} - x^k|| / (||x^k|| + eps) < tau (§4, the normalized variant of the step norm).

    Geiping's `latent-diff` (default 0.03) divides by the new state.
    """

    def statistic(self, x: Tensor, x_new: Tensor) -> Tensor:
        return relative(super().statistic(x, x_new), x)


@register("cosine")
class Cosine(StepNorm):
    """1 - cos(x^{k+1}, x^k) < tau: the angle between states, not between updates.

    As in Geiping's code (default 1e-3). A state of norm zero has no angle and never exits.
    """

    def statistic(self, x: Tensor, x_new: Tensor) -> Tensor:
        return 1 - cosine(x_new, x)


@register("kl")
class KL(ExitCriterion):
    """KL(p^k || p^{k-1}) < tau with p^k read out from x^k (Eq. 4), from k = 1 on.

    O(V C) per token and loop step for the head. Geiping's code takes the other direction and starts
    from the uniform distribution (default 1e-3).
    """

    needs_readout = True

    def start(self, x0: Tensor) -> State:
        return {"x0": x0}  # p^0 follows at the first update, which has the readout

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        # log p^{k-1} and log p^k (N, V)
        # only the first update reads out two states
        previous = readout(state["x0"]).log_softmax(-1) if "x0" in state else state["log_p"]
        log_p = readout(x_new).log_softmax(-1)
        return self.below(kl_divergence(log_p, previous)), {"log_p": log_p}


@register("minp_kl")
class MinPKL(ExitCriterion):
    """KL(q^{k-1} || q^k) < tau with q^k the min-p filtered prediction of x^k.

    As in Geiping's code (default 1e-5). Probabilities below a tenth of the largest are set to
    1 / V, then all are normalised; q^0 is uniform. O(V C) per token and loop step.
    """

    needs_readout = True
    MIN_P = 0.1

    def start(self, x0: Tensor) -> State:
        return {}  # q^0 needs V, which the first readout tells

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        p = readout(x_new).softmax(-1)  # (N, V)
        vocab_size = p.shape[-1]
        small = p < self.MIN_P * p.amax(-1, keepdim=True)
        q = p.masked_fill(small, 1 / vocab_size)
        q = q / q.sum(-1, keepdim=True)
        log_q = q.log()
        # log q^{k-1}; q^0 is uniform
        uniform = torch.full_like(log_q, -math.log(vocab_size))
        previous = state.get("log_q", uniform)
        return self.below(kl_divergence(previous, log_q)), {"log_q": log_q}


@register("entropy_diff")
class EntropyDiff(ExitCriterion):
    """|H(p^k) - H(p^{k-1})| < tau, entropies in nats (Geiping's code, default 1e-3).

    O(V C) per token and loop step. It starts from 100, an entropy that no distribution over a
    vocabulary has, so at an ordinary threshold the earliest exit is after the second step.
    """

    needs_readout = True
    START = 100.0
    EPSILON = 1e-10

    def start(self, x0: Tensor) -> State:
        return {"entropy": x0.new_full((len(x0),), self.START)}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        p = readout(x_new).softmax(-1)  # (N, V)
        # the small number keeps 0 log 0 from being NaN
        entropy = -torch.linalg.vecdot(p, (p + self.EPSILON).log())
        return self.below((entropy - state["entropy"]).abs()), {"entropy": entropy}


@register("argmax_stability")
class ArgmaxStability(ExitCriterion):
    """The predicted token is the same at tau loop steps in a row, tau an integer.

    As in Geiping's code (default 5). O(V C) per token and loop step. The first step has nothing to
    repeat, so the earliest exit is after tau + 1 steps.
    """

    needs_readout = True

    def start(self, x0: Tensor) -> State:
        count = torch.zeros(len(x0), dtype=torch.int64, device=x0.device)
        return {"token": count - 1, "repeats": count}  # -1 is no token's id

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        token = readout(x_new).argmax(-1)
        repeats = torch.where(token == state["token"], state["repeats"] + 1, 0)
        return repeats >= self.threshold, {"token": token, "repeats": repeats}


class _Prediction(ExitCriterion):
    """Decides on the prediction of the new state alone; O(V C) per token and loop step."""

    needs_readout = True

    def start(self, x0: Tensor) -> State:
        return {}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        return self.is_sure(readout(x_new)), state

    def is_sure(self, logits: Tensor) -> Tensor:
        """Whether the prediction is sure enough: logits (N, V) -> bool (N,)."""
        raise NotImplementedError


@register("confidence")
class Confidence(_Prediction):
    """max p^k >= tau (Geifman and El-Yaniv, arXiv 1705.08500)."""

    def is_sure(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1).amax(-1) >= self.threshold


@register("margin")
class Margin(_Prediction):
    """p^k of the likeliest token minus p^k of the second >= tau (CALM, arXiv 2207.07061)."""

    def is_sure(self, logits: Tensor) -> Tensor:
        first, second = logits.softmax(-1).topk(2, dim=-1).values.unbind(-1)
        return first - second >= self.threshold


@register("entropy")
class Entropy(_Prediction):
    """H(p^k) < tau in nats (BranchyNet, arXiv 1709.01686; DeeBERT, arXiv 2004.12993)."""

    def is_sure(self, logits: Tensor) -> Tensor:
        return self.below(entropies(logits))


@register("acceleration")
class Acceleration(ExitCriterion):
    """a^k = ||update^k - update^{k-1}|| < tau at two successive steps (Eq. 5, Algorithm 1).

    O(C) per token and loop step. The first a^k exists at k = 1, so the earliest exit is at k = 2,
    after three evaluations. As in Algorithm 1 the step that triggers the exit is discarded: the
    token keeps x^k.
    """

    def start(self, x0: Tensor) -> State:
        # an infinite update before the first one makes the first a^k infinite or NaN, never small
        return {"x": x0, "update": torch.full_like(x0, torch.inf)}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        update = x_new - state["x"]
        statistic = self.statistic(state["x"], update, state["update"])  # a^k (N,)
        return self.below(statistic), {"x": x_new, "update": update}

    def statistic(self, x: Tensor, update: Tensor, previous: Tensor) -> Tensor:
        """The statistic below tau, from a state, its update and the one before: (N, C) -> (N,)."""
        return acceleration(update, previous)


@register("acceleration_normalized")
class AccelerationNormalized(Acceleration):
    """a^k over the sum of both step norms < tau at two successive steps (Eq. 6).

    It measures how straight and even the steps are, not how small: under a geometric contraction by
    c it is constant at (1 - c) / (1 + c).
    """

    def statistic(self, x: Tensor, update: Tensor, previous: Tensor) -> Tensor:
        return acceleration_normalized(update, previous)


@register("acceleration_relative")
class AccelerationRelative(Acceleration):
    """a^k / (||x^k|| + eps) < tau at two successive steps (the denominator named below Eq. 6)."""

    def statistic(self, x: Tensor, update: Tensor, previous: Tensor) -> Tensor:
        return relative(super().statistic(x, update, previous), x)


@register("exit_gate")
class ExitGate(ExitCriterion):
    """Cumulated probability of exit >= tau, for a model with an exit gate (Ouro, arXiv 2510.25741).

    The gate reads lambda^k, the probability of exit at x^k given that the token has looped so far,
    from the states after a loop step; p^k = lambda^k prod_{j<k} (1 - lambda^j). Ouro gives the rest
    to the last step, where a token exits anyway. O(C) per token and loop step.
    """

    needs_gate = True

    def start(self, x0: Tensor) -> State:
        ones = x0.new_ones(len(x0))
        return {"remaining": ones, "cumulated": torch.zeros_like(ones)}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        probability = readout(x_new)  # lambda^k (N,)
        cumulated = state["cumulated"] + probability * state["remaining"]  # sum of p^j, j <= k
        remaining = state["remaining"] * (1 - probability)  # prod of 1 - lambda^j, j <= k
        return cumulated >= self.threshold, {"remaining": remaining, "cumulated": cumulated}


def make_criterion(
    name: str, threshold: float, criteria: Mapping[str, type[ExitCriterion]] = CRITERIA
) -> ExitCriterion:
    """The criterion `name` of `criteria` at `threshold`; an unknown name is an InputError."""
    if name not in criteria:
        raise InputError(
            f"exit criterion '{name}': unknown, expected one of"
            f" {', '.join(criteria)}{did_you_mean(name, criteria)}."
        )
    try:
        return criteria[name](threshold)
    except Exception as error:  # the user's code may raise anything
        raise_failure(criteria[name], "__init__", error)


def raise_failure(criterion: type[ExitCriterion], method: str, error: Exception) -> NoReturn:
    """Raise what a method raised, from a user's criterion as an InputError with the line."""
    if criterion.file is None or isinstance(error, InputError):
        raise error
    raise InputError(
        f"{place_in(criterion.file, error)}: {criterion.__name__}.{method} raised"
        f" {type(error).__name__}: {first_line(error)}, expected no exception."
    ) from error


def place_in(file: str, error: BaseException) -> str:
    """A user's file with the last of its lines that an exception has passed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        frame.lineno for frame in frames if Path(frame.filename).resolve() == Path(file).resolve()
    ]
    # the last frame is the innermost one
    return f"exit criterion file {file}" + (f", line {lines[-1]}" if lines else "")
