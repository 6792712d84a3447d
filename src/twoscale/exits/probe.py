"""A probe of states: a linear classifier, fitted after training, of whether more loop steps change a token's loss.

One logistic regression for each group predicts from the own state of a token, its relative step norm and k whether it
is converged. The criterion `probe` lets a token go at a probability of at least tau.

For the fit, on training text, the model stays as it is. All groups run in full, and x^k of a group is decoded as if all
tokens left the group with it, through the groups after it in full. A token is converged at x^k if from there on its
cross-entropy stays at most a tolerance above the last loop step's (`twoscale.exits.references.converged_within`).

Popescu et al. (arXiv 2607.20519) fit linear gates on frozen trajectories, too. They find that exits read out after
training often match or beat exits of gates that are trained with the model.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.base import InputError, meter
from twoscale.config import ConfigSlice, plain
from twoscale.data.batches import HeldOut, open_held_out
from twoscale.dynamics import vectors
from twoscale.exits.criteria import ExitCriterion, State
from twoscale.exits.references import Pass, converged_within, measure_tokens
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header, LoadedCheckpoint, check_tensors
from twoscale.model.interface import Readout, any_weight

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob
    from twoscale.model.trained_run import TrainedRun

MOST_ITERATIONS = 500  # of L-BFGS
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
        """Of the probability: features (N, F) -> (N,)."""
        return torch.mv(features, self.weight[group]) + self.bias[group]


def features(x: Tensor, x_new: Tensor, k: Tensor) -> Tensor:
    """Features (N, C + 2) of tokens from their states (N, C) before and after loop step k (N,), counted from 0.

    The new state over its root mean square, the logarithm of the relative step norm, and that of the loop steps taken.
    """
    root_mean_square = vectors.norm(x_new) / math.sqrt(x_new.shape[-1])
    direction = x_new / root_mean_square.clamp_min(torch.finfo(x_new.dtype).tiny)[:, None]
    step = vectors.relative(vectors.norm(x_new - x), x).clamp_min(LEAST_STEP)
    return torch.cat([direction, step.log()[:, None], (k + 1).to(x_new).log()[:, None]], dim=-1)


class ProbeCriterion(ExitCriterion):
    """Probability of being converged >= tau, read by the part of `probe` for the group.

    O(C) per token and loop step. `criterion_of` makes the class with a probe.
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
    return type(ProbeCriterion.__name__, (ProbeCriterion,), {"probe": probe})


# --- file ------------------------------------------------------------------------------------------------------------


def save_probe(path: Path, probe: Probe, checkpoint: LoadedCheckpoint, config: ConfigSlice) -> None:
    identity = {"seed": checkpoint.seed, "model": plain(checkpoint.model.config)}
    identity |= {"probe": plain(config.probe), "max_loops": config.max_loops}
    checkpoints.save(path, vars(probe), Header(KIND, checkpoint.iteration, 0, identity, {}))


def open_probe(path: Path | None, checkpoint: LoadedCheckpoint | TrainedRun) -> Probe | None:
    """The probe of this checkpoint, like its weights; None without a file, InputError for one of another checkpoint."""
    if path is None:
        return None
    model = checkpoint.model.config
    tensors, header = checkpoints.load(path, KIND, {"seed": checkpoint.seed, "model": plain(model)})
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


# --- fit -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def trajectory_samples(
    checkpoint: LoadedCheckpoint, text: HeldOut, group: int, config: ConfigSlice
) -> tuple[Tensor, Tensor]:
    """Features (S, F) and whether the token is converged, bool (S,), after each of the loop steps of all tokens.

    `config` has the section `probe` and `max_loops`, the loop steps K of every group; S = K times the tokens.
    """
    seen, converged = [], []
    for batch in text.batches(config.probe.batch_size):
        tokens = batch.inputs.to(checkpoint.device)
        passing = Pass.of(checkpoint, tokens, batch.sequences, config.max_loops)
        entered = dict(passing.entering(tokens))[group]
        whole = list(passing.states(group, entered, config.max_loops))  # K + 1 states (B, T, C)
        # the losses (K + 1, N) if all tokens leave the group with x^k
        behind, targets = (passing.behind(group, state) for state in whole), batch.targets.to(checkpoint.device)
        losses = torch.stack([measure_tokens(checkpoint.model, x, targets)["ce"].flatten() for x in behind])
        states, first = torch.stack(whole).flatten(1, 2), converged_within(losses, config.probe.tolerance)
        for k in range(config.max_loops):
            seen.append(features(states[k], states[k + 1], torch.full_like(first, k)).double().cpu())
            converged.append((first <= k + 1).cpu())
    return torch.cat(seen), torch.cat(converged)


def fit(seen: Tensor, converged: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Weights (F,) and bias of the logistic regression of `converged`, bool (S,), on features (S, F), in float64.

    The minimum of the mean log loss plus penalty / 2 times the squared weights and bias, of features that are
    standardised for the fit. It is unique, and L-BFGS without randomness finds it.
    """
    mean, std = seen.mean(0), seen.std(0, correction=0)
    std = std.where(std > 0, 1.0)  # a constant feature
    standardised, target = (seen - mean) / std, converged.to(seen)
    weight = seen.new_zeros(seen.shape[1] + 1, requires_grad=True)  # the bias is last
    optimizer = torch.optim.LBFGS(
        [weight], max_iter=MOST_ITERATIONS, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = standardised @ weight[:-1] + weight[-1]
        value = F.binary_cross_entropy_with_logits(logits, target) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    scaled = weight.detach()[:-1] / std
    return scaled, weight.detach()[-1] - scaled @ mean


def fit_probe(checkpoint: LoadedCheckpoint, text: HeldOut, config: ConfigSlice) -> Probe:
    """The probe of all groups of a model, fitted on `text`; `config` as for `trajectory_samples`."""
    labels, size = checkpoint.model.config.group_labels, checkpoint.model.config.hidden_size
    weight = torch.zeros(len(labels), size + FURTHER_FEATURES, dtype=torch.float64)
    bias = torch.zeros(len(labels), dtype=torch.float64)
    with meter("probe", len(labels), "groups") as bar:
        for group, label in enumerate(labels):
            seen, converged = trajectory_samples(checkpoint, text, group, config)
            weight[group], bias[group] = fit(seen, converged, config.probe.penalty)
            loss = F.binary_cross_entropy_with_logits(seen @ weight[group] + bias[group], converged.to(seen))
            share = converged.double().mean()
            base = -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share))
            print(f"probe {label}: log loss {loss:.4f} nats, {base:.4f} of the share of converged tokens, {share:.1%}")
            bar.update(1)
    return Probe(weight, bias)


def run(job: CheckpointJob) -> None:
    config, checkpoint = job.config, job.checkpoint(job.config.probe.dtype)
    text = open_held_out(job.file("train"), job.file("metadata"), config.model, config.sequences)
    save_probe(job.file("probe"), fit_probe(checkpoint, text, config), checkpoint, config)
