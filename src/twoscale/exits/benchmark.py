"""Quality and latency of exit criteria on the same held-out text (paper §4, App. D)."""

import copy
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from twoscale.base import InputError, meter
from twoscale.config import ExitsConfig
from twoscale.data.batches import HeldOut
from twoscale.exits.contract import Decisions, configured_criteria, make_readout
from twoscale.exits.cost_matched import Row, measure_cost_matched
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions, make_loops
from twoscale.exits.evaluation import (
    OperatingPoint,
    TextEvaluator,
    decoder_options,
    make_criteria,
    make_decoder,
    operating_points,
)
from twoscale.exits.parallel import KVCache, evaluate
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.interface import LoopedModel, any_weight
from twoscale.model.loss import cross_entropies

MIN_TIMING_SECONDS = 0.05  # of one timing of a check or a loop step
TRIAL_TOKENS = 8
TRIAL_STEPS = 3
TOLERANCE = 1e-3  # of logits, relative and absolute


def measure_quality(
    checkpoint: LoadedCheckpoint, text: HeldOut, exits: ExitsConfig
) -> dict[str, list[Row]]:
    """Rows of the tables "exit_quality", "exit_loops" and "exit_cost_matched", by name.

    Each held-out sequence at every operating point, and under the cost-matched exits of every
    criterion but `fixed`.
    """
    criteria, groups = make_criteria(exits), checkpoint.model.config.group_labels
    evaluator = TextEvaluator(checkpoint, exits)
    found: dict[str, list[Row]] = {"exit_quality": [], "exit_loops": [], "exit_cost_matched": []}
    controlled = [point for point in criteria if point[0] != "fixed" and groups]
    passes = len(criteria) + (exits.random_draws + 1) * len(controlled)
    with meter("quality", passes * text.inputs.numel(), "tokens") as bar:
        for (name, threshold), criterion in criteria.items():
            point = {"criterion": name, "threshold": float(threshold)}
            evaluations = []
            for batch in text.batches(evaluator.batch_size(criterion)):
                logits, counts = evaluator.evaluate(criterion, batch)
                ce = cross_entropies(logits, batch.targets).mean(1).tolist()
                # share of true values per sequence, of (G, B, T); 0 without groups
                at_max = [
                    part.double().mean().item() if part.numel() else 0.0
                    for part in (counts.evaluations == exits.max_loops).unbind(1)
                ]
                quality = batch.rows(ce=ce, ppl=list(map(math.exp, ce)), share_at_max_loops=at_max)
                found["exit_quality"] += [point | row for row in quality]
                means = {
                    kind: values.float().mean(-1) for kind, values in vars(counts).items()
                }  # (G, B) each
                found["exit_loops"] += [
                    point
                    | key
                    | {"group": group}
                    | {kind: values[g, i].item() for kind, values in means.items()}
                    for i, key in enumerate(batch.keys)
                    for g, group in enumerate(groups)
                ]
                evaluations.append(counts.evaluations)
                bar.update(batch.inputs.numel())
            if (name, threshold) in controlled:
                key = checkpoint.seed, "exit controls", name, float(threshold)
                measured = evaluator.evaluate_prescribed, torch.cat(evaluations, dim=1), text
                for rows in measure_cost_matched(
                    *measured, exits.quality_batch_size, exits.random_draws, key
                ):
                    found["exit_cost_matched"] += [point | row for row in rows]
                    bar.update(text.inputs.numel())
    return found


def timed_segments(context_length: int, tokens: int, segments: int) -> list[slice]:
    """Positions to time: `tokens` of them in up to `segments` stretches, centred in equal parts of
    the context.
    """
    segments = min(segments, tokens)
    # both the context and the tokens are split at the same fractions, so a stretch fits into its
    # part
    parts, counts = (
        [i * size // segments for i in range(segments + 1)] for size in (context_length, tokens)
    )
    lengths = [stop - start for start, stop in pairwise(counts)]
    starts = [
        start + (stop - start - n) // 2
        for (start, stop), n in zip(pairwise(parts), lengths, strict=True)
    ]
    return [slice(start, start + n) for start, n in zip(starts, lengths, strict=True)]


def turns(
    points: Sequence[OperatingPoint], repeats: int
) -> list[tuple[int | None, OperatingPoint]]:
    """The order of a measurement of time: (repeat, point), with None for the turns to discard.

    The last point of each criterion is first decoded once as a warm-up. Within a repeat all points
    take turns, and each repeat starts a share of the list later than the one before.
    """
    order: list[tuple[int | None, OperatingPoint]] = [
        (None, point) for point in dict(points).items()
    ]
    for repeat in range(repeats):
        first = repeat * len(points) // repeats
        order += [(repeat, point) for point in (*points[first:], *points[:first])]
    return order


def measure_latency(
    checkpoint: LoadedCheckpoint, prompts: HeldOut, exits: ExitsConfig
) -> tuple[list[Row], list[Row]]:
    """Rows of the tables "exit_latency" and "exit_latency_loops".

    Repeat r decodes prompt r (R, T) with the noise of its sequence. Tokens are timed at places
    spread over the context, because tokens exit at other loop steps early in a text than late. All
    operating points take turns within a repeat, each followed at once by its baseline, the same
    evaluations without a criterion, so a drift of the machine affects all of them alike.
    """
    criteria = make_criteria(exits)
    decoder = make_decoder(checkpoint, exits)
    segments = timed_segments(prompts.inputs.shape[1], exits.latency_tokens, exits.latency_segments)
    order = turns(list(criteria), repeats=len(prompts.inputs))
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    latency: list[Row] = []
    loops: list[Row] = []
    with meter("latency", len(order), "points") as bar:
        for repeat, (name, threshold) in order:
            prompt = repeat or 0
            decoder.reset(criteria[name, threshold], int(prompts.sequences[prompt]))
            times = time_segments(decoder, prompts.inputs[prompt].tolist(), segments)
            bar.update(1)
            if repeat is None:
                continue
            key = {"criterion": name, "threshold": float(threshold), "repeat": repeat}
            *seconds, evaluations = times
            tokens = len(evaluations)
            ms = {
                kind: 1e3 * t / tokens
                for kind, t in zip(("latency_ms", "baseline_ms"), seconds, strict=True)
            }
            machine = {"load_average": os.getloadavg()[0], "cpus": cpus}
            latency.append(key | {"tokens": tokens} | ms | machine)
            means = torch.tensor(evaluations, dtype=torch.float64).mean(0).tolist()  # per group
            groups = zip(checkpoint.model.config.group_labels, means, strict=True)
            loops += [key | {"group": group, "evaluations": mean} for group, mean in groups]
    return latency, loops


@torch.inference_mode()
def measure_check_cost(
    checkpoint: LoadedCheckpoint, prompts: HeldOut, exits: ExitsConfig
) -> Iterator[Row]:
    """Rows of the table "check_cost": a KL decision and a loop step, timed in turn on the same
    state (1, C).

    One token, as in decoding, the first of each of the R prompts; one thread on CPU.
    """
    from torch.utils.benchmark import Timer  # imports setuptools, so only where a call is timed

    model = checkpoint.model
    criterion = make_criterion("kl", 1.0)
    cache = KVCache(model.config, slots=1, like=any_weight(model))
    loops = make_loops(model, cache, 1, decoder_options(model, exits))
    for repeat, (prompt, sequence) in enumerate(
        zip(prompts.inputs, prompts.sequences, strict=True)
    ):
        tokens = prompt[None, :1].to(checkpoint.device)
        loops.start(0, tokens[0], checkpoint.noise([sequence]))
        entered = model.embed(tokens, loops.positions)  # (1, 1, C)
        for group, label in enumerate(model.config.group_labels):
            x = model.init_state(group, entered, checkpoint.noise([sequence]))[0]
            calls = {
                "check_ms": loops.check(criterion, group, x),
                "loop_step_ms": loops.step(group, entered[0], x),
            }
            timers = {name: Timer("call()", globals={"call": call}) for name, call in calls.items()}
            found = {
                name: timer.blocked_autorange(min_run_time=MIN_TIMING_SECONDS)
                for name, timer in timers.items()
            }
            yield {"group": label, "repeat": repeat} | {
                name: 1e3 * timed.median for name, timed in found.items()
            }


def time_segments(
    decoder: Decoder, tokens: Sequence[int], segments: Sequence[slice]
) -> tuple[float, float, list[list[int]]]:
    """Seconds of the tokens of the segments under the criterion and in the baseline, and their
    evaluations per group.

    Both start from the same cache: what was read before the segment under the criterion. That text
    is read once: segments are timed from the last to the first, which needs only a part of what the
    next one needs.
    """
    seconds, baseline_seconds, evaluations = 0.0, 0.0, []
    if before := tokens[: segments[-1].start]:
        decoder.prefill(before)
    for segment in reversed(segments):
        decoder.rewind(segment.start)
        taken, counts = time_tokens(decoder, tokens[segment])
        decoder.rewind(segment.start)
        seconds += taken
        baseline_seconds += time_tokens(decoder, tokens[segment], counts)[0]
        evaluations += counts
    return seconds, baseline_seconds, evaluations


def time_tokens(
    decoder: Decoder, tokens: Sequence[int], evaluations: Sequence[Sequence[int]] | None = None
) -> tuple[float, list[list[int]]]:
    """Seconds to feed the tokens one by one, and the evaluations of each token in each group.

    With the `evaluations` of an earlier call, the same loop steps run without the criterion.
    """
    synchronise = torch.cuda.synchronize if any_weight(decoder.model).is_cuda else lambda: None
    synchronise()
    started = time.perf_counter()
    counts = [
        decoder.feed(token, evaluations[i] if evaluations else None)[1]
        for i, token in enumerate(tokens)
    ]
    synchronise()
    return time.perf_counter() - started, counts


@job_files(reads="criteria", writes="latency latency_loops check_cost")
def run(job: CheckpointJob) -> None:
    """Latency of all criteria, and the time of a check where the job has an output for it."""
    exits = job.config.exits
    checkpoint, prompts = job.checkpoint(exits.dtype), job.held_out(exits.latency_repeats)
    latency, loops = measure_latency(checkpoint, prompts, exits)
    job.write("exit_latency", latency, "latency")
    job.write("exit_latency_loops", loops, "latency_loops")
    if "check_cost" in job.files:
        job.write("check_cost", measure_check_cost(checkpoint, prompts, exits))


# --- trial of criteria before they are measured: both engines must see the same exits -------------


def try_criteria(checkpoint: LoadedCheckpoint, tokens: Tensor, exits: ExitsConfig) -> None:
    """Run every operating point of `exits` on the first tokens of held-out sequence 0, `tokens`
    (T,), in both engines.

    Raises InputError where the exits or the logits differ, and where a user's criterion writes into
    the states that it is given. Rounding can move an exit whose statistic is within a few units of
    the threshold, so a difference counts only if it is there in float64 too.
    """
    classes, tokens = configured_criteria(exits.criteria), tokens[:TRIAL_TOKENS]
    for name, threshold in operating_points(exits):
        file = exits.criteria[name].file
        if file is not None:
            check_inputs(checkpoint.model, make_criterion(name, threshold, classes))
        arguments = tokens, make_criterion(name, threshold, classes), exits.max_loops
        if _difference(checkpoint, *arguments) is None:
            continue
        difference = _difference(
            replace(checkpoint, model=copy.deepcopy(checkpoint.model).double()), *arguments
        )
        if difference is not None:
            where = f"exit criterion '{name}'" + (f" of the file {file}" if file else "")
            raise InputError(
                f"{where} at {threshold:g}: found {difference}, expected no difference: the"
                f" decision for a token "
                "may depend only on its own row."
            )


def check_inputs(model: LoopedModel, criterion: ExitCriterion) -> None:
    """Refuse a user's criterion that changes x0 or x_new: they are the model's states, with which
    it goes on.
    """
    shape, source = (
        (1 + TRIAL_STEPS, TRIAL_TOKENS, model.config.hidden_size),
        torch.Generator().manual_seed(0),
    )
    states = torch.randn(shape, generator=source).to(any_weight(model))
    copies = states.clone()
    decisions = Decisions(criterion, copies[0], make_readout(model, criterion, "head", 0))
    for x_new in copies[1:]:
        decisions.update(x_new)
    if not torch.equal(copies, states):
        raise InputError(
            f"exit criterion file {criterion.file}: {type(criterion).__name__} changed x0 or"
            f" x_new in place, expected "
            "them unchanged; write into a copy, such as x_new.clone()."
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
    found = counts.evaluations[:, 0].T  # (T, G)
    expected = torch.tensor(evaluations, device=found.device).view_as(found)
    if (wrong := (found != expected).nonzero()).numel():
        token, group = wrong[0].tolist()
        return (
            f"{found[token, group]} evaluations of token {token} in group"
            f" {model.config.group_labels[group]} in "
            f"parallel and {expected[token, group]} in decoding"
        )
    if not torch.allclose(
        logits[0], torch.stack(decoded), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    ):
        return "the same exits in parallel and in decoding but different logits"
    return None


@job_files(writes="quality loops cost_matched")
def measure_exit_quality(job: CheckpointJob) -> None:
    """Quality and loops of a criterion and its cost-matched exits; a user's criterion is first
    tried on few tokens.
    """
    exits = job.config.exits
    torch.set_num_threads(job.threads)
    checkpoint = job.checkpoint(exits.dtype)
    text = job.held_out(job.config.sequences)
    if job.config.criterion_files:
        try_criteria(checkpoint, text.inputs[0], exits)
    for table, rows in measure_quality(checkpoint, text, exits).items():
        job.write(table, rows, table.removeprefix("exit_"))
