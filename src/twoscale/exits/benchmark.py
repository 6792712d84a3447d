"""Quality and latency of exit criteria on the same held-out text (paper §4, App. D)."""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from twoscale.base import InputError, meter
from twoscale.config import ExitsConfig
from twoscale.data.batches import HeldOut
from twoscale.exits.contract import Decisions, make_readout
from twoscale.exits.cost_matched import Row, measure_cost_matched
from twoscale.exits.costs import measure_costs, processor_clock, timed_segments
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.evaluation import (
    OperatingPoint,
    TextEvaluator,
    make_criteria,
    make_decoder,
)
from twoscale.exits.parallel import LoopCounts, evaluate
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.loss import cross_entropies

TRIAL_TOKENS = 8
TRIAL_STEPS = 3
TOLERANCE = 1e-3  # of logits, relative and absolute


# --- the benchmark --------------------------------------------------------------------------------


@job_files(writes="quality loops cost_matched")
def measure_exit_quality(job: CheckpointJob) -> None:
    """Quality and loops of a criterion and of its cost-matched exits.

    A user's criterion is first tried on few tokens.
    """
    exits = job.config.exits
    torch.set_num_threads(job.threads)
    checkpoint = job.checkpoint(exits.dtype)
    text = job.held_out(job.config.sequences)
    if job.config.criterion_files:
        try_criteria(checkpoint, text.inputs[0], exits)
    found = measure_quality(checkpoint, text, exits)
    for table, rows in found.items():
        job.write(table, rows, table.removeprefix("exit_"))


@job_files(reads="criteria", writes="latency costs")
def run(job: CheckpointJob) -> None:
    """Latency of all criteria, and the costs of loop steps and decisions if the job writes them."""
    exits = job.config.exits
    checkpoint = job.checkpoint(exits.dtype)
    prompts = job.held_out(exits.latency_repeats)
    # one decoder and the same criteria, for which graphs are captured once
    criteria = make_criteria(exits)
    decoder = make_decoder(checkpoint, exits)
    if "costs" in job.files:
        job.write("exit_costs", measure_costs(decoder, criteria, prompts, exits), "costs")
    job.write("exit_latency", measure_latency(decoder, criteria, prompts, exits), "latency")


def measure_quality(
    checkpoint: LoadedCheckpoint, text: HeldOut, exits: ExitsConfig
) -> dict[str, list[Row]]:
    """Rows of the tables "exit_quality", "exit_loops" and "exit_cost_matched", by name.

    Each held-out sequence at every operating point, and under the cost-matched exits of every
    criterion but `fixed`.
    """
    criteria = make_criteria(exits)
    groups = checkpoint.model.config.group_labels
    evaluator = TextEvaluator(checkpoint, exits)
    matched = [point for point in criteria if point[0] != "fixed" and groups]
    passes = len(criteria) + (exits.random_draws + 1) * len(matched)
    quality: list[Row] = []
    loops: list[Row] = []
    cost_matched: list[Row] = []
    with meter("quality", passes * text.inputs.numel(), "tokens") as bar:
        for point, criterion in criteria.items():
            name, threshold = point[0], float(point[1])
            key = {"criterion": name, "threshold": threshold}
            evaluations = []
            for batch in text.batches(evaluator.batch_size(criterion)):
                logits, counts = evaluator.evaluate(criterion, batch)
                losses = cross_entropies(logits, batch.targets).mean(1).tolist()
                quality += [key | row for row in batch.rows(ce=losses)]
                loops += [key | row for row in _loops(batch, counts, groups)]
                evaluations.append(counts.evaluations)
                bar.update(batch.inputs.numel())
            if point not in matched:
                continue
            for rows in measure_cost_matched(
                evaluator.evaluate_prescribed,
                torch.cat(evaluations, dim=1),  # (G, N, T)
                text,
                batch_size=exits.quality_batch_size,
                draws=exits.random_draws,
                key=(checkpoint.seed, "exit controls", name, threshold),
            ):
                cost_matched += [key | row for row in rows]
                bar.update(text.inputs.numel())
    return {"exit_quality": quality, "exit_loops": loops, "exit_cost_matched": cost_matched}


def _loops(batch: HeldOut, counts: LoopCounts, groups: Sequence[str]) -> Iterator[Row]:
    """Mean loop steps and evaluations of each sequence in each group."""
    loop_steps = counts.loop_steps.float().mean(-1).tolist()  # (G, B)
    evaluations = counts.evaluations.float().mean(-1).tolist()
    for i, key in enumerate(batch.keys):
        for g, group in enumerate(groups):
            means = {"loop_steps": loop_steps[g][i], "evaluations": evaluations[g][i]}
            yield key | {"group": group} | means


def measure_latency(
    decoder: Decoder,
    criteria: Mapping[OperatingPoint, ExitCriterion],
    prompts: HeldOut,
    exits: ExitsConfig,
) -> Iterator[Row]:
    """Rows of the table "exit_latency".

    Repeat r decodes prompt r (R, T) with the noise of its sequence. Tokens are timed at places
    spread over the context, because tokens exit at other loop steps early in a text than late. All
    operating points take turns within a repeat, each followed at once by its baseline, the same
    evaluations without a criterion, so a drift of the machine affects all of them alike.
    """
    segments = timed_segments(prompts.inputs.shape[1], exits.latency_tokens, exits.latency_segments)
    order = turns(list(criteria), repeats=len(prompts.inputs))
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with meter("latency", len(order), "points") as bar:
        for repeat, point in order:
            prompt = repeat or 0
            decoder.reset(criteria[point], int(prompts.sequences[prompt]))
            timed = time_segments(decoder, prompts.inputs[prompt].tolist(), segments)
            bar.update(1)
            if repeat is None:
                continue
            name, threshold = point
            seconds, baseline_seconds, evaluations = timed
            tokens = len(evaluations)
            yield {
                "criterion": name,
                "threshold": float(threshold),
                "repeat": repeat,
                "tokens": tokens,
                "latency_ms": 1e3 * seconds / tokens,
                "baseline_ms": 1e3 * baseline_seconds / tokens,
                "load_average": os.getloadavg()[0],
                "cpus": cpus,
            }


# --- times ----------------------------------------------------------------------------------------


def turns(
    points: Sequence[OperatingPoint], repeats: int
) -> list[tuple[int | None, OperatingPoint]]:
    """The order of a measurement of time: (repeat, point), with None for the turns to discard.

    The last point of each criterion is first decoded once as a warm-up. Within a repeat all points
    take turns, and each repeat starts a share of the list later than the one before.
    """
    order: list[tuple[int | None, OperatingPoint]] = []
    order += [(None, point) for point in dict(points).items()]
    for repeat in range(repeats):
        first = repeat * len(points) // repeats
        order += [(repeat, point) for point in (*points[first:], *points[:first])]
    return order


def time_segments(
    decoder: Decoder, tokens: Sequence[int], segments: Sequence[slice]
) -> tuple[float, float, list[list[int]]]:
    """Seconds of the tokens of the segments under the criterion and in the baseline.

    Third, the evaluations of each token per group. Both start from the same cache: what was read
    before the segment under the criterion. That text is read once: segments are timed from the last
    to the first, which needs only a part of what the next one needs.
    """
    seconds = baseline_seconds = 0.0
    evaluations = []
    before = tokens[: segments[-1].start]
    if before:
        decoder.prefill(before)
    for segment in reversed(segments):
        decoder.rewind(segment.start)
        taken, counts = time_tokens(decoder, tokens[segment])
        decoder.rewind(segment.start)
        baseline_taken, _ = time_tokens(decoder, tokens[segment], counts)
        seconds += taken
        baseline_seconds += baseline_taken
        evaluations += counts
    return seconds, baseline_seconds, evaluations


def time_tokens(
    decoder: Decoder, tokens: Sequence[int], evaluations: Sequence[Sequence[int]] | None = None
) -> tuple[float, list[list[int]]]:
    """Seconds to feed the tokens one by one, and the evaluations of each token in each group.

    With the `evaluations` of an earlier call, the same loop steps run without the criterion.
    """
    clock = processor_clock(decoder.model)
    prescribed: Sequence[Sequence[int] | None] = evaluations or [None] * len(tokens)
    started = clock()
    counts = [decoder.feed(*token)[1] for token in zip(tokens, prescribed, strict=True)]
    return clock() - started, counts


# --- trial of criteria before they are measured: both engines must see the same exits -------------


def try_criteria(checkpoint: LoadedCheckpoint, tokens: Tensor, exits: ExitsConfig) -> None:
    """Run every operating point of `exits` on the first of the `tokens` (T,) in both engines.

    They are those of held-out sequence 0. Raises InputError where the exits or the logits differ,
    and where a user's criterion writes into the states that it is given. Rounding can move an exit
    whose statistic is within a few units of the threshold, so a difference counts only if it is
    there in float64 too.
    """
    tokens = tokens[:TRIAL_TOKENS]
    for (name, threshold), criterion in make_criteria(exits).items():
        file = exits.criteria[name].file
        if file is not None:
            _check_inputs(checkpoint.model, criterion)
        if _difference(checkpoint, tokens, criterion, exits.max_loops) is None:
            continue
        exact = replace(checkpoint, model=copy.deepcopy(checkpoint.model).double())
        difference = _difference(exact, tokens, criterion, exits.max_loops)
        if difference is not None:
            of_file = f" of the file {file}" if file else ""
            raise InputError(
                f"exit criterion '{name}'{of_file} at {threshold:g}: found {difference}, expected"
                " no difference: the decision for a token may depend only on its own row."
            )


def _check_inputs(model: LoopedModel, criterion: ExitCriterion) -> None:
    """Refuse a user's criterion that changes x0 or x_new, with which the model goes on."""
    shape = 1 + TRIAL_STEPS, TRIAL_TOKENS, model.config.hidden_size
    source = torch.Generator().manual_seed(0)
    states = torch.randn(shape, generator=source).to(any_weight(model))
    given = states.clone()
    decisions = Decisions(criterion, given[0], make_readout(model, criterion, "head", 0))
    for x_new in given[1:]:
        decisions.update(x_new)
    if not torch.equal(given, states):
        raise InputError(
            f"exit criterion file {criterion.file}: {type(criterion).__name__} changed x0 or"
            " x_new in place, expected them unchanged; write into a copy, such as x_new.clone()."
        )


def _difference(
    checkpoint: LoadedCheckpoint, tokens: Tensor, criterion: ExitCriterion, max_loops: int
) -> str | None:
    """How the tokens (T,) come out of both engines, if not alike."""
    model = checkpoint.model
    batch = tokens[None].to(checkpoint.device)
    logits, counts = evaluate(model, batch, criterion, max_loops, checkpoint.noise([0]))
    decoder = Decoder(model, criterion, max_loops, checkpoint.seed, DecoderOptions(replay=False))
    decoded, evaluations = zip(*map(decoder.feed, tokens.tolist()), strict=True)
    in_parallel = counts.evaluations[:, 0].T.tolist()  # (T, G)
    for token, (found, expected) in enumerate(zip(in_parallel, evaluations, strict=True)):
        for group, label in enumerate(model.config.group_labels):
            if found[group] != expected[group]:
                return (
                    f"{found[group]} evaluations of token {token} in group {label} in parallel"
                    f" and {expected[group]} in decoding"
                )
    if not torch.allclose(
        logits[0], torch.stack(decoded), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    ):
        return "the same exits in parallel and in decoding but different logits"
    return None
