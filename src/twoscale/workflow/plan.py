"""The cost of a run, computed from its config: FLOPs, bytes on disk and in memory, hours, and
claims out of reach.
"""

import math
from typing import TYPE_CHECKING, get_args

from twoscale import config, tables
from twoscale.model.flops import (
    BYTES,
    cache_bytes,
    flops_per_token,
    layer_matrices,
    mean_flops_per_token,
    parameters,
)
from twoscale.workflow.memory import (
    PUBLISHED_BYTES,
    SEGMENT_STATES,
    activation_bytes,
    loading_bytes,
    states_bytes,
)

if TYPE_CHECKING:
    from twoscale.claims.verdicts import Claim

Lines = list[tuple[str, str]]  # label and value
# Sustained tera-FLOP/s of training and of analyses, and GB/s from memory, on one GPU or on two
# threads of a CPU (docs/benchmarks.md). Analyses compute in float32 and float64.
RATES = {"cuda": (100.0, 20.0, 1000.0), "cpu": (0.03, 0.03, 10.0)}
OPTIMIZER_STEP = 4  # weights, gradients and two moments


def rows(run: config.Config, tflops: float | None = None) -> Lines:
    """The lines of the plan of a run. `tflops`: sustained tera-FLOP/s of training, assumed unless
    given.
    """
    training, analysis, bandwidth = RATES[run.compute.device]
    training = training if tflops is None else tflops
    flops, tokens = analyses(run)
    hours = (
        flops / (analysis * 1e12) / 3600 + tokens * _decoded_bytes(run) / (bandwidth * 1e9) / 3600
    )
    trained = run.model.source != "published"
    decoded = cache_bytes(run.model, run.exits.max_loops, run.exits.dtype)
    return [
        ("parameters", f"{_decimals(parameters(run.model) / 1e6, 1)} M"),
        *(_training_rows(run) if trained else _published_rows(run)),
        ("states for Fig. 1 on disk", _gigabytes(states_bytes(run))),
        ("per-token tables on disk, at most", _gigabytes(_table_bytes(run))),
        ("cache of one decoded sequence, in memory", _gigabytes(decoded)),
        ("FLOPs of the analyses of the figures, at most", f"{flops:.3g}"),
        *(
            [
                (
                    f"hours of training at {training:g} TFLOP/s a process",
                    _decimals(_hours(run, training)),
                )
            ]
            * trained
        ),
        ("hours in all, at most", _decimals(hours + (_hours(run, training) if trained else 0))),
    ]


def _training_rows(run: config.Config) -> Lines:
    model, train = run.model, run.train
    weights, tokens = parameters(model) * BYTES["float32"], run.training_tokens
    flops = mean_flops_per_token(model, train).total
    # tokens of GPT-2 can be counted while text is collected, those of a tokenizer trained on it
    # cannot
    unit = "tokens" if run.tokenizer.name == "gpt2" else "characters"
    text = getattr(run.data, f"train_{unit}")
    return [
        ("iterations", f"{train.iterations:,}"),
        ("tokens trained on", f"{_decimals(tokens / 1e6, 1)} M"),
        ("FLOPs per token, causal attention", f"{_decimals(flops / 1e9)} G"),
        ("training FLOPs, causal attention", f"{flops * tokens:.3g}"),
        ("training jobs (one per checkpoint)", str(_checkpoints(run) - 1)),
        ("checkpoints to analyse", str(_checkpoints(run))),
        (f"text to collect, {unit}", "all" if text is None else f"{text:,}"),
        ("checkpoints on disk", _gigabytes(_checkpoints(run) * weights)),
        ("optimizer and partial states on disk, at most", _gigabytes(SEGMENT_STATES * weights)),
        *memory_rows(run),
    ]


def _published_rows(run: config.Config) -> Lines:
    count = parameters(run.model)
    return [
        ("weights on disk, in bf16", _gigabytes(count * PUBLISHED_BYTES)),
        ("weights in memory, exit criteria", _gigabytes(count * BYTES[run.exits.dtype])),
        ("weights in memory, trajectories", _gigabytes(count * BYTES[run.trajectories.dtype])),
        (
            "FLOPs per token at all loops",
            f"{_decimals(_forward(run.model, run.exits.max_loops) / 1e9)} G",
        ),
    ]


# --- hours ----------------------------------------------------------------------------------------


def _hours(run: config.Config, tflops: float) -> float:
    """Hours of training; processes wait for the slowest, which has the most sequences."""
    train = run.train
    slowest = train.processes * _parts(train)[0] / train.batch_size
    flops = mean_flops_per_token(run.model, train).total * run.training_tokens
    return flops * slowest / (tflops * train.processes * 1e12) / 3600


def analyses(run: config.Config) -> tuple[float, int]:
    """FLOPs of whole sequences, and tokens that are read one by one, for the figures of the paper;
    without any exit.

    Trajectories of every checkpoint; then quality, cost-matched exits and latency at all operating
    points. Text under criteria that need predictions is read token by token where those pass the
    remaining layers; timed tokens are read twice.
    """
    from twoscale.exits.criteria import CRITERIA  # here, because it imports torch

    exits, sequences, length = run.exits, run.quality_sequences, run.model.context_length
    points = {name: len(entry.thresholds) for name, entry in exits.criteria.items()}
    by_token = [
        name
        for name in points
        if exits.readout != "head" and name in CRITERIA and CRITERIA[name].needs_readout
    ]
    sequential, total = sum(points[name] for name in by_token), sum(points.values())
    whole = total - sequential + (total - points.get("fixed", 0)) * (exits.random_draws + 1)
    rounds = exits.latency_repeats + 1
    flops = (
        _checkpoints(run) * run.trajectory_sequences * _forward(run.model, run.trajectories.loops)
    )
    flops += sequences * whole * _forward(run.model, exits.max_loops)
    return length * flops, 2 * exits.latency_tokens * rounds * total + length * (
        rounds + sequences
    ) * sequential


def _checkpoints(run: config.Config) -> int:
    return (
        1 if run.model.source == "published" else 1 + len(config.checkpoint_iterations(run.train))
    )


def _forward(model: config.ModelConfig, loops: int) -> float:
    """FLOPs of a forward pass per token at the same loop count in all groups."""
    return flops_per_token(model, [loops] * len(model.groups)).forward


def _decoded_bytes(run: config.Config) -> float:
    """Bytes of the weights that one token reads in decoding: a layer each time it is applied, and
    the head.
    """
    model, exits = run.model, run.exits
    applied = {
        number: exits.max_loops if model.is_looped(number) else 1
        for number in range(1, model.num_layers + 1)
    }
    layers = sum(times * layer_matrices(model, number) for number, times in applied.items())
    return (layers + model.hidden_size * model.padded_vocab_size) * BYTES[exits.dtype]


# --- bytes on disk --------------------------------------------------------------------------------


def row_bytes(table: str, measures: int = 0) -> int:
    """One row of a table with so many measures in memory; on disk parquet packs repeated keys more
    tightly.
    """
    return (
        sum(BYTES[dtype] for dtype in tables.columns(table).values())
        + measures * BYTES[tables.MEASURE_TYPE]
    )


def _table_bytes(run: config.Config) -> int:
    from twoscale.dynamics import measures  # here, because it imports torch

    steps = (run.trajectories.loops + 1) * row_bytes("trajectories", len(measures.LOOP_MEASURES))
    paths = row_bytes("token_paths", len(measures.PATH_MEASURES))
    references = get_args(type(run.figures).__annotations__["dlr_reference_state"])
    drift = len(run.model.boundary_labels) * len(references) * row_bytes("token_drift")
    tokens = _checkpoints(run) * run.trajectory_sequences * run.model.context_length
    return tokens * (len(run.model.groups) * (steps + paths) + drift)


# --- memory ---------------------------------------------------------------------------------------


def memory_rows(run: config.Config) -> Lines:
    """Processes of a training job, and memory of each: with train.shard a part of the weights, and
    those that are gathered; under autocast also a copy in bfloat16 until the backward pass.
    """
    train, parts = run.train, _parts(run.train)
    sequences = math.ceil(parts[0] / train.micro_batches)
    fixed = (
        OPTIMIZER_STEP
        * parameters(run.model)
        * BYTES["float32"]
        / (train.processes if train.shard else 1)
    )
    gathered = (
        2 * parameters(run.model) * BYTES["float32"] if train.shard else 0
    )  # weights and gradients, at most
    cast = (
        BYTES["bfloat16"] * parameters(run.model)
        if train.precision_on(run.compute.device) == "bfloat16"
        else 0
    )
    activations = sequences * activation_bytes(run)
    device = "GPU" if run.compute.device == "cuda" else "process"
    return [
        (
            "training processes, one per GPU" if device == "GPU" else "training processes",
            str(len(parts)),
        ),
        ("sequences of each process", ", ".join(map(str, parts))),
        (f"weights, gradients, moments on a {device}", _gigabytes(fixed)),
        (f"activations of {sequences} sequences, in float32", _gigabytes(activations)),
        (
            f"memory of a {device} in training, about",
            _gigabytes(fixed + gathered + cast + activations),
        ),
        *(
            [("memory of each node to load the model", _gigabytes(loading_bytes(run)))]
            if train.shard
            else []
        ),
    ]


def _parts(train: config.TrainConfig) -> list[int]:
    """Sequences of each process, largest first."""
    share, rest = divmod(train.batch_size, train.processes)
    return [share + 1] * rest + [share] * (train.processes - rest)


# --- notes ----------------------------------------------------------------------------------------


def notes(run: config.Config) -> list[str]:
    """Sentences on claims that the run cannot uphold, whatever it measures."""
    from twoscale.claims.verdicts import CLAIMS  # here, because it imports pandas

    found = ((claim, _obstacle(claim, run)) for claim in CLAIMS)
    return [
        f"claim {claim.number} ({claim.title}) {obstacle}." for claim, obstacle in found if obstacle
    ]


def _obstacle(claim: "Claim", run: config.Config) -> str:
    """Why the run cannot uphold a claim, and what would help: half a sentence; empty if it may."""
    from twoscale.claims.evidence import FEWEST_FOR_TREND

    published = run.model.source == "published"
    groups, loops = len(run.model.group_labels), run.trajectories.loops
    if (lacking := claim.needs.lacking(groups, loops, run.exits.max_loops, published)) is not None:
        return f"is not asked: {lacking}"
    if claim.needs.training:
        after_warmup = [
            n for n in config.checkpoint_iterations(run.train) if n > run.train.warmup_iterations
        ]
        if (number := len(after_warmup)) < FEWEST_FOR_TREND:
            found = (
                f"{number} checkpoint{'s' * (number != 1)} after warm-up, but a trend needs"
                f" {FEWEST_FOR_TREND}"
            )
            return f"cannot be judged: {found} (train.checkpoint_every, train.early_checkpoints)"
    if (sequences := run.trajectory_sequences) < claim.documents:
        tokens = claim.documents * run.model.context_length
        narrow = (
            f"with the noise of the demo, the intervals fit within the bounds from"
            f" {claim.documents} documents on"
        )
        return (
            f"cannot be upheld from {sequences} held-out sequences: {narrow}"
            f" (trajectories.tokens: {tokens} or more)"
        )
    return ""


def _gigabytes(count: float) -> str:
    return f"{_decimals(count / 1e9, 3)} GB"


def _decimals(value: float, digits: int = 2) -> str:
    """A number with this many decimals, or, where these would be zeros, with two significant
    digits.
    """
    return f"{value:,.{digits}f}" if value == 0 or value >= 10**-digits else f"{value:.2g}"
