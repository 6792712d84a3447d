"""Path independence: whether a loop ends at the same state from every initial state that its noise
gives it.

Geiping et al. (2025) hope for it and show it in pictures. Here the same text is run under several
draws of the noise. They vary in one group at a time, which separates the effect of a group's
initial state from the effect of what earlier groups pass on, and in all groups at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from twoscale import tables
from twoscale.data.batches import HeldOut
from twoscale.dynamics import vectors
from twoscale.dynamics.states import Columns, batches, flat, is_group, token_keys
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import LoopedModel, Noise

ALL = "all"  # label of the rows with all groups varied at once


@job_files(writes="independence")
@torch.no_grad()
def run(job: CheckpointJob) -> None:
    """Write the table "token_independence"."""
    config = job.config
    checkpoint, draws = job.checkpoint(config.trajectories.dtype), config.path_independence.draws
    with tables.writing("token_independence", job.file("independence")) as append:
        text = job.held_out(config.sequences)
        for batch in batches(checkpoint, text, config.trajectories.batch_size, "path independence"):
            for columns in measure_batch(checkpoint, batch, config.trajectories.loops, draws):
                append(columns)


def measure_batch(
    checkpoint: LoadedCheckpoint, batch: HeldOut, loops: int, draws: int
) -> Iterator[Columns]:
    """Rows of the table "token_independence" for B held-out sequences, one (draw, varied group) at
    a time, each against the run's own noise.

    The distance is between the last states x^K of the varied group; of the last group if all are
    varied, which is not measured again for a model with one group.
    """
    model = checkpoint.model
    labels = model.config.group_labels
    if not labels:
        return
    keys = token_keys(checkpoint.iteration, batch)
    tokens = batch.inputs.to(checkpoint.device)
    own = checkpoint.noise(batch.sequences)
    states, log_p = final_states(model, tokens, loops, own)
    # which groups take the noise of another draw: each alone, then all
    varied = {label: [group] for group, label in enumerate(labels)}
    if len(labels) > 1:
        varied[ALL] = list(range(len(labels)))
    for draw in range(1, draws + 1):
        # a further draw is the noise of another seed
        other = replace(checkpoint, seed=checkpoint.seed + draw).noise(batch.sequences)
        for label, groups in varied.items():
            other_states, log_q = final_states(model, tokens, loops, mixed(own, other, groups))
            compared = compare(states[groups[-1]], other_states[groups[-1]], log_p, log_q)
            rows = len(keys["iteration"])
            yield keys | {"group": np.full(rows, label), "draw": np.full(rows, draw)} | compared


def compare(state: Tensor, other: Tensor, log_p: Tensor, log_q: Tensor) -> Columns:
    """Measured columns from two last states (B, T, C) and two predictions (B, T, V)."""
    distance = vectors.norm(other - state)
    compared = {
        "distance": distance,
        "distance_relative": vectors.relative(distance, state),
        # a KL is negative only by rounding
        "kl": vectors.kl_divergence(log_p.flatten(0, -2), log_q.flatten(0, -2)).clamp_min(0),
        "agreement": log_p.argmax(-1) == log_q.argmax(-1),
    }
    return {name: flat(values) for name, values in compared.items()}


def final_states(
    model: LoopedModel, tokens: Tensor, loops: int, noise: Noise
) -> tuple[list[Tensor], Tensor]:
    """x^K (B, T, C) of every group, and the log-probabilities (B, T, V) of the next token."""
    states = []
    for stage in model.trace(tokens, [loops] * len(model.config.groups), noise):
        if is_group(stage):
            states.append(stage.states[-1])
    return states, model.readout(stage.output).log_softmax(-1)


def mixed(own: Noise, other: Noise, groups: Sequence[int]) -> Noise:
    """The noise `other` in these groups, `own` in the rest."""
    return lambda group, k, like: (other if group in groups else own)(group, k, like)
