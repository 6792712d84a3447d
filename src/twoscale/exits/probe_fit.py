"""The fit of the probe on training text, one logistic regression for each group.

The model stays as it is. All groups run in full, and x^k of a group is decoded as in `twoscale.exits.lens`: all tokens
leave the group with it, and the groups after it run in full too. A token is converged at x^k if from there on its
cross-entropy stays at most a tolerance above the last loop step's (`twoscale.exits.oracle.converged_within`).

Popescu et al. (arXiv 2607.20519) fit linear gates on frozen trajectories, too. They find that exits read out after
training often match or beat exits of gates that are trained with the model.
"""

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.base import meter
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut, open_held_out
from twoscale.exits.oracle import converged_within
from twoscale.exits.probe import FURTHER_FEATURES, Probe, features, save_probe
from twoscale.exits.sequence_pass import Pass, measure_tokens
from twoscale.model.checkpoints import LoadedCheckpoint

if TYPE_CHECKING:
    from twoscale.model.checkpoint_job import CheckpointJob

MOST_ITERATIONS = 500  # of L-BFGS


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
        states = torch.stack(list(passing.states(group, entered, config.max_loops))).flatten(1, 2)  # (K + 1, N, C)
        decode = partial(_losses, passing, group, batch)
        losses = torch.stack([decode(state) for state in states])  # (K + 1, N)
        first = converged_within(losses, config.probe.tolerance)
        for k in range(config.max_loops):
            seen.append(features(states[k], states[k + 1], torch.full_like(first, k)).double().cpu())
            converged.append((first <= k + 1).cpu())
    return torch.cat(seen), torch.cat(converged)


def _losses(passing: Pass, group: int, batch: HeldOut, state: Tensor) -> Tensor:
    """Cross-entropy (N,) of each token if all of them leave the group with the states (N, C)."""
    hidden = passing.behind(group, state.unflatten(0, batch.inputs.shape))
    return measure_tokens(passing.model, hidden, batch.targets.to(hidden.device))["ce"].flatten()


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
            print(f"probe {label}: {quality(seen, converged, weight[group], bias[group])}")
            bar.update(1)
    return Probe(weight, bias)


def quality(seen: Tensor, converged: Tensor, weight: Tensor, bias: Tensor) -> str:
    """The log loss of a fit in a sentence, with the log loss of the share of converged tokens alone."""
    found = F.binary_cross_entropy_with_logits(seen @ weight + bias, converged.to(seen))
    share = converged.double().mean()
    base = -(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share))
    return (
        f"log loss {found:.4f} nats, compared with {base:.4f} if only the share of converged tokens, {share:.1%}, "
        "is known"
    )


def run(job: "CheckpointJob") -> None:
    """The job of the workflow."""
    config, checkpoint = job.config, job.checkpoint(job.config.probe.dtype)
    text = open_held_out(job.file("train"), job.file("metadata"), config.model, config.sequences)
    save_probe(job.file("probe"), fit_probe(checkpoint, text, config), checkpoint, config)
