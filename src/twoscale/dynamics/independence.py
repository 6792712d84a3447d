"""Path independence: whether a loop ends at the same place wherever its noise made it start.

Geiping et al. (2025) hope for it and show it in pictures. Here the same text is run from several draws of the
noise, varied in one group at a time, so that what a group does with its start is not mixed with what the groups
before it hand over, and in all groups at once.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from twoscale.dynamics import measures
from twoscale import progress, tables
from twoscale import config
from twoscale.exits.criteria import divergence
from twoscale.model.transformer import LoopedTransformer, Noise
from twoscale.model.noise import EvaluationNoise
from twoscale.dynamics.trajectories import Columns, flat, token_keys

ALL = "all"  # the row of all groups varied at once


@torch.no_grad()
def measure(
    model: LoopedTransformer,
    blocks: Tensor,
    step: int,
    seed: int,
    chosen: config.TrajectoriesConfig,
    draws: int,
    path: Path,
) -> None:
    """Compare `draws` further draws of the noise with the run's own on held-out blocks (N, T); write the table."""
    device = next(model.parameters()).device
    with (
        tables.writing("token_independence", path) as append,
        progress.meter(f"path independence of step {iteration}", blocks.numel(), "tokens") as bar,
    ):
        for start in range(0, len(blocks), chosen.batch):
            batch = blocks[start : start + chosen.batch].to(device)
            sequences = range(start, start + len(batch))
            for columns in measure_batch(model, batch, sequences, seed, step, chosen.budget, draws):
                append(columns)
            bar.update(batch.numel())


def measure_batch(
    model: LoopedTransformer, tokens: Tensor, sequences: Sequence[int], seed: int, step: int, budget: int, draws: int
) -> Iterator[Columns]:
    """Rows of the table "token_independence" for held-out blocks (B, T), one draw and varied group at a time.

    The distance is that of the last states x^K of the varied group; of the last group where all are varied.
    """
    labels = model.config.group_labels
    if not labels:
        return
    keys = token_keys(sequences, tokens.shape[1], step)
    block = model.config.context_length
    own = EvaluationNoise(seed, sequences, block)
    states, log_p = run(model, tokens, budget, own)
    groups = range(len(labels))
    varied = {label: [group] for group, label in enumerate(labels)} | {ALL: list(groups)}
    for draw in range(1, draws + 1):
        other = EvaluationNoise(seed + draw, sequences, block)
        for label, members in varied.items():
            other_states, log_q = run(model, tokens, budget, mixed(own, other, members))
            last = members[-1]
            distance = measures.norm(other_states[last] - states[last])
            compared = {
                "distance": distance,
                "distance_relative": measures.relative(distance, states[last]),
                # never negative but for rounding
                "kl": divergence(log_p.flatten(0, -2), log_q.flatten(0, -2)).clamp_min(0),
                "agreement": log_p.argmax(-1) == log_q.argmax(-1),
            }
            constants = {"group": [label] * len(keys["iteration"]), "draw": [draw] * len(keys["iteration"])}
            yield keys | constants | {name: flat(values) for name, values in compared.items()}


def run(model: LoopedTransformer, tokens: Tensor, budget: int, noise: Noise) -> tuple[list[Tensor], Tensor]:
    """x^K (B, T, C) of every group, and the log-probabilities (B, T, V) of the next token."""
    states = []
    for place, hidden in model.walk(tokens, [budget] * len(model.groups), noise):
        if place.stage == "loop" and place.k == budget:
            states.append(hidden)
    return states, model.readout(hidden).log_softmax(-1)


def mixed(own: Noise, other: Noise, groups: Sequence[int]) -> Noise:
    """The noise `other` in these groups, `own` in the rest."""
    return lambda group, k, like: (other if group in groups else own)(group, k, like)
