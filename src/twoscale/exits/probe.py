"""A probe of states: a linear classifier, fitted after training, of whether more loop steps change a token's loss.

One logistic regression for each group predicts from the own state of a token, its relative step norm and k whether it
is converged, see `twoscale.exits.probe_fit`. The criterion `probe` lets a token go at a probability of at least tau.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.config import ConfigSlice, ModelConfig, plain
from twoscale.dynamics import vectors
from twoscale.exits.criteria import ExitCriterion, State
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header, LoadedCheckpoint
from twoscale.model.interface import Readout, any_weight
from twoscale.model.tensors import check_tensors

if TYPE_CHECKING:
    from twoscale.model.trained_run import TrainedRun

FILE = "probe.safetensors"  # in the folder of a run
KIND = "probe"  # of the file
LEAST_STEP = 1e-8  # relative step norms are at least this before the logarithm
FURTHER_FEATURES = 2  # besides the components of the state


@dataclass(frozen=True)
class Probe:
    """Weights (G, F) and biases (G,) of the logistic regressions of G groups, F = C + 2 features."""

    weight: Tensor
    bias: Tensor

    def logits(self, group: int, features: Tensor) -> Tensor:
        """Logit of the probability: features (N, F) -> (N,)."""
        return torch.mv(features, self.weight[group]) + self.bias[group]


def features(x: Tensor, x_new: Tensor, k: Tensor) -> Tensor:
    """Features of a token after loop step k, from its states only.

    The new state over its root mean square, the logarithm of the relative step norm, and the logarithm of the number of
    loop steps taken, k + 1.

    Args:
        x, x_new: States before and after loop step k (N, C).
        k: Number of the loop step (N,), counted from 0.

    Returns (N, C + 2).
    """
    root_mean_square = vectors.norm(x_new) / math.sqrt(x_new.shape[-1])
    direction = x_new / root_mean_square.clamp_min(torch.finfo(x_new.dtype).tiny)[:, None]
    step = vectors.relative(vectors.norm(x_new - x), x).clamp_min(LEAST_STEP)
    return torch.cat([direction, step.log()[:, None], (k + 1).to(x_new).log()[:, None]], dim=-1)


class ProbeCriterion(ExitCriterion):
    """Probability of being converged >= tau, read by the part of `probe` for the group.

    O(C) per token and loop step; remembers the last state and the number of loop steps. `criterion_of` makes the class
    with a probe.
    """

    larger_is_later = True
    probe: ClassVar[Probe]
    group = 0

    def of_group(self, group: int) -> ExitCriterion:
        criterion = copy(self)
        criterion.group = group
        return criterion

    def start(self, x0: Tensor) -> State:
        return {"x": x0, "k": torch.zeros(len(x0), dtype=torch.int64, device=x0.device)}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        seen = features(state["x"], x_new, state["k"])
        converged = self.probe.logits(self.group, seen).sigmoid() >= self.threshold
        return converged, {"x": x_new, "k": state["k"] + 1}


def criterion_of(probe: Probe) -> type[ProbeCriterion]:
    """The exit criterion that reads this probe."""
    return type(ProbeCriterion.__name__, (ProbeCriterion,), {"probe": probe})


# --- files -----------------------------------------------------------------------------------------------------------


def save_probe(path: Path, probe: Probe, checkpoint: LoadedCheckpoint, config: ConfigSlice) -> None:
    """Write a probe with the identity of its model and of its fit."""
    identity = _model_identity(checkpoint.model.config, checkpoint.seed)
    identity |= {"probe": plain(config.probe), "max_loops": config.max_loops}
    checkpoints.save(path, vars(probe), Header(KIND, checkpoint.iteration, 0, identity, {}))


def open_probe(path: Path | None, checkpoint: LoadedCheckpoint | TrainedRun) -> Probe | None:
    """The probe of this checkpoint in the dtype and on the device of its model; None without a file.

    A file of another model, seed or iteration is an InputError.
    """
    if path is None:
        return None
    model = checkpoint.model.config
    tensors, header = checkpoints.load(path, KIND, _model_identity(model, checkpoint.seed))
    if header.iteration != checkpoint.iteration:
        raise InputError(
            f"{path}: found a probe of iteration {header.iteration}, expected {checkpoint.iteration} as in the "
            "checkpoint."
        )
    groups = len(model.groups)
    shapes = {"weight": (groups, model.hidden_size + FURTHER_FEATURES), "bias": (groups,)}
    check_tensors(path, tensors, {name: torch.empty(s, dtype=torch.float64) for name, s in shapes.items()})
    like = any_weight(checkpoint.model)
    return Probe(**{name: tensor.to(like) for name, tensor in tensors.items()})


def _model_identity(model: ModelConfig, seed: int) -> dict[str, Any]:
    return {"seed": seed, "model": plain(model)}
