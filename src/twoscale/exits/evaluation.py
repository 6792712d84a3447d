"""Held-out texts and texts of a user under exit criteria, or at fixed loop counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from twoscale.base import InputError, meter
from twoscale.config import ExitsConfig, ScalingConfig
from twoscale.config.criteria import check_threshold
from twoscale.data.batches import HeldOut
from twoscale.exits import criteria, parallel
from twoscale.exits.contract import configured_criteria, is_sequential
from twoscale.exits.cost_matched import PrescribedExits, Row
from twoscale.exits.criteria import ExitCriterion, Fixed
from twoscale.exits.decoder import (
    Decoder,
    DecoderOptions,
    evaluate_by_position,
    evaluate_prescribed,
)
from twoscale.exits.parallel import LoopCounts, distinct_slots
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.loss import cross_entropies

if TYPE_CHECKING:
    import pandas as pd

    from twoscale.model.trained_run import TrainedRun


OperatingPoint = tuple[str, float]  # criterion, threshold


def operating_points(exits: ExitsConfig) -> list[OperatingPoint]:
    return [
        (name, threshold)
        for name, entry in exits.criteria.items()
        for threshold in entry.thresholds
    ]


def make_criteria(exits: ExitsConfig) -> dict[OperatingPoint, ExitCriterion]:
    classes = configured_criteria(exits.criteria)
    return {point: criteria.make_criterion(*point, classes) for point in operating_points(exits)}


def make_decoder(checkpoint: LoadedCheckpoint, exits: ExitsConfig) -> Decoder:
    """A decoder with the cache, the readout and the captured steps of the config."""
    model = checkpoint.model
    full_depth = Fixed(exits.max_loops)
    options = decoder_options(model, exits)
    return Decoder(model, full_depth, exits.max_loops, checkpoint.seed, options)


def decoder_options(model: LoopedModel, exits: ExitsConfig) -> DecoderOptions:
    replay = exits.cuda_graphs and any_weight(model).is_cuda
    return DecoderOptions(
        kv_slots=exits.kv_slots, readout=exits.readout, replay=replay, compile=exits.compile
    )


class TextEvaluator:
    """Evaluates held-out sequences under exit criteria, in parallel where the config allows it."""

    def __init__(self, checkpoint: LoadedCheckpoint, exits: ExitsConfig) -> None:
        self.checkpoint = checkpoint
        self.exits = exits

    @cached_property
    def _decoder(self) -> Decoder:
        """Made on first use: it allocates a cache and, on CUDA, captures every loop step."""
        return make_decoder(self.checkpoint, self.exits)

    def is_parallel(self, criterion: ExitCriterion) -> bool:
        slots = distinct_slots(self.exits.kv_slots, self.exits.max_loops)
        # a shared slot holds later steps of earlier tokens, which a parallel pass has not computed
        # yet
        if slots < self.exits.max_loops:
            return False
        return not is_sequential(criterion, self.exits.readout)

    def batch_size(self, criterion: ExitCriterion) -> int:
        return self.exits.quality_batch_size if self.is_parallel(criterion) else 1

    def evaluate(self, criterion: ExitCriterion, text: HeldOut) -> tuple[Tensor, LoopCounts]:
        """Logits (B, T, V) and counts of B held-out sequences."""
        if self.is_parallel(criterion):
            return evaluate_parallel(self.checkpoint, criterion, text, self.exits.max_loops)
        return evaluate_by_position(self._decoder, text.inputs, criterion, text.sequences)

    def evaluate_prescribed(self, evaluations: Tensor, text: HeldOut) -> Tensor:
        """Logits (B, T, V) of B held-out sequences with these `evaluations` (G, B, T)."""
        exits = PrescribedExits(evaluations.to(self.checkpoint.device))
        if self.is_parallel(exits):
            return evaluate_parallel(self.checkpoint, exits, text, self.exits.max_loops)[0]
        return evaluate_prescribed(self._decoder, text.inputs, evaluations, text.sequences)


def evaluate_parallel(
    checkpoint: LoadedCheckpoint, criterion: ExitCriterion, text: HeldOut, max_loops: int
) -> tuple[Tensor, LoopCounts]:
    """`TextEvaluator.evaluate` in parallel, where every loop step has its own keys and values."""
    tokens = text.inputs.to(checkpoint.device)
    noise = checkpoint.noise(text.sequences)
    return parallel.evaluate(checkpoint.model, tokens, criterion, max_loops, noise)


# --- a user's text, from Python -------------------------------------------------------------------


def make_criterion(name: str, threshold: float) -> ExitCriterion:
    """A built-in exit criterion at a threshold.

    Args:
        name: Name of the criterion, such as "acceleration" (Algorithm 1), "step_norm", "kl", or
            "fixed" (the same number of loop steps for all tokens). The error for an unknown name
            lists all names.
        threshold: τ, in the unit of the criterion's statistic: that of the states for norms, nats
            for "kl", and a whole number of loop steps for "fixed".

    Raises:
        InputError: for an unknown name, or a threshold that is not a number above 0.

    Example:
        >>> criterion = twoscale.make_criterion("acceleration", threshold=0.01)
    """
    criterion = criteria.make_criterion(name, threshold)
    check_threshold(name, threshold, None, f"threshold of {name}", "max_loops")
    return criterion


def evaluate(
    run: TrainedRun,
    text: str | Sequence[int] | Tensor,
    criterion: ExitCriterion,
    max_loops: int = 30,
) -> pd.DataFrame:
    """Exits and quality of each token of a text, when each token loops until the criterion fires.

    All tokens are computed in parallel; the result is the same as when they are decoded one by one.

    Args:
        run: What `open_run` returned.
        text: A text, or token ids (T,) or (B, T).
        criterion: What `make_criterion` returned, or an instance of your class.
        max_loops: Maximum number of loop steps of a token in a group.

    Returns:
        One row for each token and looped group: sequence, position (0 … T - 1), token (its text),
        group (such as "5-6"), loop_steps (of the state with which the token leaves the group),
        evaluations (the cost, one more if the criterion discards the last step), and ce, the
        cross-entropy of the next token in nats, equal for all groups; NaN at the end of a sequence.

    Raises:
        InputError: for a text that is longer than the context, wrong token ids, a model without
            looped groups, and a criterion that breaks its contract.

    Example:
        >>> criterion = twoscale.make_criterion("acceleration", 0.01)
        >>> exits = twoscale.evaluate(run, "Return the value", criterion)
        >>> exits.groupby("group")[["evaluations", "ce"]].mean()
    """
    import pandas as pd

    tokens = run.context(text)  # (B, T)
    labels = run.model.config.group_labels
    _check_call(criterion, max_loops)
    if not labels:
        raise InputError(
            "model: found no looped group, expected at least one, because tokens exit from loops."
        )
    noise = run.noise(range(len(tokens)))
    logits, counts = parallel.evaluate(run.model, tokens, criterion, max_loops, noise)
    losses = torch.full(tokens.shape, torch.nan, dtype=torch.float64)  # (B, T)
    # the last token has no next one
    losses[:, :-1] = cross_entropies(logits[:, :-1], tokens[:, 1:]).cpu()
    # rows in the order of sequences, positions and groups
    batch, length = tokens.shape
    groups = len(labels)
    # each id is decoded once
    words = {token: run.tokenizer.decode([token]) for token in tokens.unique().tolist()}
    columns = {
        "sequence": np.arange(batch).repeat(length * groups),
        "position": np.tile(np.arange(length).repeat(groups), batch),
        "token": [words[token] for token in tokens.flatten().tolist() for _ in labels],
        "group": [*labels] * (batch * length),
    }
    for name, values in vars(counts).items():  # (G, B, T) each
        columns[name] = values.permute(1, 2, 0).flatten().numpy(force=True)  # (B, T, G)
    columns["ce"] = losses.flatten().numpy().repeat(groups)
    return pd.DataFrame(columns)


def _check_call(criterion: ExitCriterion, max_loops: int) -> None:
    """Refuse arguments of `evaluate`."""
    if not isinstance(criterion, ExitCriterion):
        raise InputError(
            f"criterion: found {criterion!r}, expected one such as"
            ' twoscale.make_criterion("acceleration", 0.01).'
        )
    if type(max_loops) is not int or max_loops < 1:
        raise InputError(f"max_loops: found {max_loops!r}, expected a whole number of at least 1.")
    if isinstance(criterion, Fixed):
        check_threshold("fixed", criterion.threshold, max_loops, "threshold of fixed", "max_loops")


@job_files(writes="quality")
def measure_fixed_loops(job: CheckpointJob) -> None:
    """Write the table "scaling_quality"."""
    scaling = job.config.scaling
    text = job.held_out(job.config.sequences)
    rows = measure_scaling(job.checkpoint(scaling.dtype), text, scaling)
    job.write("scaling_quality", rows, "quality")


def measure_scaling(
    checkpoint: LoadedCheckpoint, text: HeldOut, scaling: ScalingConfig
) -> Iterator[Row]:
    """Rows of the table "scaling_quality": held-out sequences at each loop count of all groups."""
    label = f"scaling of iteration {checkpoint.iteration}"
    with meter(label, len(scaling.loops) * text.inputs.numel(), "tokens") as bar:
        for loops in scaling.loops:
            for batch in text.batches(scaling.batch_size):
                logits, _ = evaluate_parallel(checkpoint, Fixed(loops), batch, loops)
                losses = cross_entropies(logits, batch.targets).mean(1).tolist()  # of each sequence
                for row in batch.rows(ce=losses):
                    yield {"iteration": checkpoint.iteration, "loops": loops, **row}
                bar.update(batch.inputs.numel())
