"""The printed plan of a run: FLOPs, parameters, bytes and jobs, computed from its config."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self, get_args

from twoscale import config, tables
from twoscale.analysis.costs import Cost, checkpoints, decoded_bytes, forward, training_tokens
from twoscale.base import InputError
from twoscale.claims.evidence import FEWEST_FOR_TREND
from twoscale.claims.verdicts import CLAIMS, Claim
from twoscale.discovery import study_parts
from twoscale.model.flops import BYTES, cache_bytes, parameters
from twoscale.training.plan import (
    PUBLISHED_BYTES,
    SEGMENT_STATES,
    activation_bytes,
    gathered_bytes,
    loading_bytes,
    mean_flops_per_token,
    states_bytes,
)
from twoscale.workflow.core import JOBS, PROBE_JOB
from twoscale.workflow.rows import Measurement

Lines = list[tuple[str, str]]  # label and value
# Rates that a plan assumes unless they are given. On cpu: 0.03, measured on two threads (docs/benchmarks.md).
ASSUMED = {
    "cuda": {"tflops": 100.0, "analysis_tflops": 20.0, "bandwidth": 1000.0},
    "cpu": {"tflops": 0.03, "analysis_tflops": 0.03, "bandwidth": 10.0},
}
OPTIMIZER_STEP = 4  # weights, gradients and two moments


@dataclass(frozen=True)
class Rates:
    """Sustained rates of a machine: tera-FLOP/s of training and of analyses, which compute in float32 and float64,
    and GB/s from memory. Raises InputError for one that is not > 0.
    """

    tflops: float
    bandwidth: float
    analysis_tflops: float

    @classmethod
    def of(cls, device: str, **given: float | None) -> Self:
        """The rates that are `given`, and assumed ones of a device for those that are None."""
        return cls(**ASSUMED[device] | {name: rate for name, rate in given.items() if rate is not None})

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if not 0 < rate < math.inf:
                raise InputError(f"option --{name.replace('_', '-')}: found {rate:g}, expected a finite number > 0.")


def rows(run: config.Config, rates: Rates) -> Lines:
    """The lines of the plan of a run."""
    if run.model.source == "published":
        return published_rows(run, rates)
    return training_rows(run, rates) + memory_rows(run) + analysis_rows(run, rates)


def training_rows(run: config.Config, rates: Rates) -> Lines:
    """The lines on training and on what a run has on disk."""
    model, train = run.model, run.train
    weights = parameters(model) * BYTES["float32"]
    tokens = training_tokens(run)
    flops = mean_flops_per_token(model, train).total
    full = mean_flops_per_token(model, train, causal=False).total
    cache = cache_bytes(model, run.exits.max_loops, run.exits.dtype)
    slowest = train.processes * _parts(train)[0] / train.batch_size  # of processes that wait for it
    hours = flops * tokens / (rates.tflops * train.processes / slowest * 1e12) / 3600
    # tokens of GPT-2 can be counted while text is collected, those of a tokenizer trained on it cannot
    unit = "tokens" if run.tokenizer.name == "gpt2" else "characters"
    text = getattr(run.data, f"train_{unit}")
    return [
        ("parameters", f"{_decimals(parameters(model) / 1e6, 1)} M"),
        ("iterations", f"{train.iterations:,}"),
        ("tokens trained on", f"{_decimals(tokens / 1e6, 1)} M"),
        ("FLOPs per token, causal attention", f"{_decimals(flops / 1e9)} G"),
        ("training FLOPs, causal attention", f"{flops * tokens:.3g}"),
        ("training FLOPs, full attention", f"{full * tokens:.3g}"),
        (f"hours of training at {rates.tflops:g} TFLOP/s a process", _decimals(hours)),
        ("training jobs (one per checkpoint)", str(checkpoints(run) - 1)),
        ("checkpoints to analyse", str(checkpoints(run))),
        (f"text to collect, {unit}", "all" if text is None else f"{text:,}"),
        ("checkpoints on disk", _gigabytes(checkpoints(run) * weights)),
        ("optimizer and partial states on disk, at most", _gigabytes(SEGMENT_STATES * weights)),
        *_disk_rows(run),
        ("cache of one decoded sequence, in memory", _gigabytes(cache)),
    ]


def _disk_rows(run: config.Config) -> Lines:
    measured = checkpoints(run) * run.trajectory_sequences * run.model.context_length  # tokens
    return [
        ("states for Fig. 1 on disk", _gigabytes(states_bytes(run))),
        ("per-token tables on disk, at most", _gigabytes(measured * _bytes_per_token(run))),
    ]


def row_bytes(table: str, measures: int = 0) -> int:
    """One row of a table with so many measures in memory; on disk parquet packs repeated keys more tightly."""
    return sum(BYTES[dtype] for dtype in tables.columns(table).values()) + measures * BYTES[tables.MEASURE_TYPE]


def _bytes_per_token(run: config.Config) -> int:
    """Bytes of the rows of a token in the per-token tables of a checkpoint."""
    from twoscale.dynamics import measures, path_types  # noqa: F401 - here, because they import torch

    steps = (run.trajectories.loops + 1) * row_bytes("trajectories", len(measures.LOOP_MEASURES))
    paths = row_bytes("token_paths", len(measures.PATH_MEASURES))
    references = get_args(type(run.figures).__annotations__["dlr_reference_state"])
    drift = len(run.model.boundary_labels) * len(references) * row_bytes("token_drift")
    return len(run.model.groups) * (steps + paths) + drift


# --- memory of training ------------------------------------------------------------------------------------------


def memory_rows(run: config.Config) -> Lines:
    """Nodes and processes of a training job, and memory of each process, in float32 but for the weights under autocast.

    With train.shard also the memory of a node that loading the model takes.
    """
    train, parts = run.train, _parts(run.train)
    sequences = math.ceil(parts[0] / train.micro_batches)
    fixed = OPTIMIZER_STEP * parameters(run.model) * BYTES["float32"] / (train.processes if train.shard else 1)
    gathered = gathered_bytes(run.model) if train.shard else 0
    cast = BYTES["bfloat16"] * parameters(run.model) if train.precision_on(run.compute.device) == "bfloat16" else 0
    activations = sequences * activation_bytes(run)
    device = "GPU" if run.compute.device == "cuda" else "process"
    return [
        ("nodes of a training job", str(train.nodes)),
        ("training processes, one per GPU" if device == "GPU" else "training processes", str(len(parts))),
        ("sequences of each process", ", ".join(map(str, parts))),
        (f"weights, gradients, moments on a {device}", _gigabytes(fixed)),
        *([("gathered weights and gradients, about", _gigabytes(gathered))] if train.shard else []),
        *([("copies of the weights in bfloat16, until the backward pass", _gigabytes(cast))] if cast else []),
        (f"activations of {sequences} sequences, in float32", _gigabytes(activations)),
        (f"memory of a {device} in training, about", _gigabytes(fixed + gathered + cast + activations)),
        *([("memory of each node to load the model", _gigabytes(loading_bytes(run)))] if train.shard else []),
    ]


def _parts(train: config.TrainConfig) -> list[int]:
    """Sequences of each process, largest first."""
    share, rest = divmod(train.batch_size, train.processes)
    return [share + 1] * rest + [share] * (train.processes - rest)


def notes(run: config.Config) -> list[str]:
    """Sentences on what the config makes slow, and on claims that no result of the run can uphold."""
    return [*_idle(run), *claim_notes(run)]


def _idle(run: config.Config) -> list[str]:
    train = run.train
    if run.model.source == "published" or train.batch_size % train.processes == 0:
        return []
    idle = 1 - train.batch_size / (train.processes * _parts(train)[0])
    divisors = [count for count in range(1, train.batch_size + 1) if train.batch_size % count == 0]
    return [
        f"train.processes: {train.processes} does not divide train.batch_size = {train.batch_size}, so processes wait "
        f"for {idle:.0%} of the time; {', '.join(map(str, divisors))} do."
    ]


# --- claims ------------------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    """What the evidence of a run will have, as `claims.Needs` asks for it."""

    groups: tuple[str, ...]
    loop_steps: int
    max_loops: int
    published: bool


def claim_notes(run: config.Config) -> list[str]:
    """A sentence for each claim that the run cannot uphold, whatever it measures, with what would help."""
    found = ((claim, _obstacle(claim, run)) for claim in CLAIMS)
    return [f"claim {claim.number} ({claim.title}) {obstacle}." for claim, obstacle in found if obstacle]


def _obstacle(claim: Claim, run: config.Config) -> str:
    """Half a sentence; empty if the claim may be upheld."""
    published = run.model.source == "published"
    expected = Expected(run.model.group_labels, run.trajectories.loops, run.exits.max_loops, published)
    if (lacking := claim.needs.lacking(expected)) is not None:
        return f"is not asked: {lacking}"
    if claim.needs.training and (number := _after_warmup(run.train)) < FEWEST_FOR_TREND:
        found = f"{number} checkpoint{'s' * (number != 1)} after warm-up, but a trend needs {FEWEST_FOR_TREND}"
        return f"cannot be judged: {found} (train.checkpoint_every, train.early_checkpoints)"
    if (sequences := run.trajectory_sequences) < claim.documents:
        tokens = claim.documents * run.model.context_length
        narrow = f"with the noise of the demo, the intervals fit within the bounds from {claim.documents} documents on"
        return f"cannot be upheld from {sequences} held-out sequences: {narrow} (trajectories.tokens: {tokens} or more)"
    return ""


def _after_warmup(train: config.TrainConfig) -> int:
    """Checkpoints after warm-up."""
    return sum(iteration > train.warmup_iterations for iteration in config.checkpoint_iterations(train))


# --- analyses ----------------------------------------------------------------------------------------------------


def analyses(run: config.Config) -> dict[str, Cost]:
    """The cost of the analyses of a target, of all rows of jobs that it needs."""
    studies = [job for part in study_parts("study").values() for job in getattr(part, "JOBS", ())]
    return {"figures": _total(run, JOBS), "supplementary": _total(run, [*studies, PROBE_JOB])}


def _total(run: config.Config, jobs: Iterable[object]) -> Cost:
    costs = [job.cost(run) for job in jobs if isinstance(job, Measurement)]
    return Cost(*map(sum, zip(*costs, strict=True)))


def analysis_rows(run: config.Config, rates: Rates) -> Lines:
    """The lines on the analyses of a trained run."""
    lines = []
    for name, cost in analyses(run).items():
        hours, decoding = _hours(run, cost, rates)
        lines += [
            (f"{name}: FLOPs of whole sequences, at most", f"{cost.flops:.3g}"),
            (f"{name}: hours at {rates.analysis_tflops:g} TFLOP/s", hours),
            (f"{name}: tokens read one by one, at most", f"{cost.tokens:,}"),
            (f"{name}: hours at {rates.bandwidth:g} GB/s", decoding),
        ]
    return lines


def _hours(run: config.Config, cost: Cost, rates: Rates) -> tuple[str, str]:
    """Hours of whole sequences, and of tokens that are read one by one."""
    decoding = cost.tokens * decoded_bytes(run) / (rates.bandwidth * 1e9)
    return _decimals(cost.flops / (rates.analysis_tflops * 1e12) / 3600), _decimals(decoding / 3600)


def published_rows(run: config.Config, rates: Rates) -> Lines:
    """The lines of the plan of a published model. FLOPs and tokens are those without any exit, so upper bounds."""
    model, exits, trajectories = run.model, run.exits, run.trajectories
    count, size = parameters(model), BYTES[exits.dtype]
    states = trajectories.batch_size * model.context_length * model.hidden_size * BYTES[trajectories.dtype]
    logits = exits.quality_batch_size * model.context_length * model.padded_vocab_size * size
    cost = Cost(*map(sum, zip(*analyses(run).values(), strict=True)))
    hours, decoding = _hours(run, cost, rates)
    return [
        ("parameters", f"{_decimals(count / 1e6, 1)} M"),
        ("weights on disk, in bf16", _gigabytes(count * PUBLISHED_BYTES)),
        ("weights in memory, exit criteria", _gigabytes(count * size)),
        ("weights in memory, trajectories", _gigabytes(count * BYTES[trajectories.dtype])),
        # twice: as a list, and stacked for the distances of the path
        ("states of a batch of trajectories, in memory", _gigabytes(2 * (trajectories.loops + 1) * states)),
        ("logits of a batch of held-out text, in memory", _gigabytes(logits)),
        ("cache of one decoded sequence, in memory", _gigabytes(cache_bytes(model, exits.max_loops, exits.dtype))),
        *_disk_rows(run),
        ("FLOPs per token at all loops", f"{_decimals(forward(model, exits.max_loops) / 1e9)} G"),
        ("FLOPs of whole sequences, at most", f"{cost.flops:.3g}"),
        (f"hours of these at {rates.analysis_tflops:g} TFLOP/s", hours),
        ("tokens read one by one, at most", f"{cost.tokens:,}"),
        (f"hours of these at {rates.bandwidth:g} GB/s", decoding),
    ]


def _gigabytes(count: float) -> str:
    return f"{_decimals(count / 1e9, 3)} GB"


def _decimals(value: float, digits: int = 2) -> str:
    """A number with this many decimals, or, where these would be zeros, with two significant digits."""
    return f"{value:,.{digits}f}" if value == 0 or value >= 10**-digits else f"{value:.2g}"
