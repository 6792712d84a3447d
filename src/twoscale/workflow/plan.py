"""The cost of a run, computed from its config: FLOPs, hours, memory, disk; claims out of reach."""

import math
from typing import TYPE_CHECKING

from twoscale import config
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
    from twoscale.claims.evidence import Extent

Lines = list[tuple[str, str]]  # label and value
# Sustained tera-FLOP/s of training and of analyses, and GB/s from memory, on one GPU or on two
# threads of a CPU (docs/benchmarks.md). Analyses compute in float32 and float64.
RATES = {"cuda": (100.0, 20.0, 1000.0), "cpu": (0.03, 0.03, 10.0)}
# Seconds of a job before it computes, and of a layer for one token, as in the released demo
_JOB_SECONDS, _LAYER_SECONDS = 3.0, 1e-4
_JOBS = 20  # that are not of one checkpoint: text, exits, tables and figures
_OPTIMIZER_STEP = 4  # weights, gradients and two moments


def rows(run: config.Config, tflops: float | None = None) -> Lines:
    """The lines of the plan of a run.

    `tflops` are sustained tera-FLOP/s of training, by default those of `RATES`.
    """
    training_rate, analysis_rate, bandwidth = RATES[run.compute.device]
    training_rate = tflops or training_rate
    flops, tokens = analyses(run)
    hours = flops / (3600e12 * analysis_rate)
    hours += tokens * _token_seconds(run, bandwidth) / 3600
    hours += (_JOBS + 2 * _checkpoints(run)) * _JOB_SECONDS / 3600  # training and trajectories
    lines = [("parameters", f"{parameters(run.model) / 1e6:,.4g} M")]
    if run.model.source == "published":
        weights = parameters(run.model) * PUBLISHED_BYTES
        lines.append(("weights on disk, in bf16", _gigabytes(weights)))
    else:
        trained = training_hours(run, training_rate)
        hours += trained
        lines += _training_rows(run)
        label = f"hours of training at {training_rate:g} TFLOP/s a process"
        lines.append((label, f"{trained:.3g}"))
    decoding = parameters(run.model) * BYTES[run.exits.dtype]  # weights
    decoding += cache_bytes(run.model, run.exits.max_loops, run.exits.dtype)  # KV cache
    return [
        *lines,
        ("states for Fig. 1 on disk", _gigabytes(states_bytes(run))),
        ("memory to decode one sequence, about", _gigabytes(decoding)),
        ("FLOPs of the analyses of the figures, at most", f"{flops:.3g}"),
        ("hours in all, at most", f"{hours:.3g}"),
    ]


def _training_rows(run: config.Config) -> Lines:
    weights = parameters(run.model) * BYTES["float32"]
    # a tokenizer that is trained on the text cannot count its tokens while it is collected
    unit = "tokens" if run.tokenizer.name == "gpt2" else "characters"
    text = getattr(run.data, f"train_{unit}")
    lines = [
        ("iterations", f"{run.train.iterations:,}"),
        ("training jobs (one per checkpoint)", str(_checkpoints(run) - 1)),
        (f"text to collect, {unit}", "all" if text is None else f"{text:,}"),
        ("training FLOPs, causal attention", f"{_training_flops(run):.3g}"),
        ("checkpoints on disk", _gigabytes(_checkpoints(run) * weights)),
        ("optimizer and partial states on disk, at most", _gigabytes(SEGMENT_STATES * weights)),
        ("memory of a process in training, about", _gigabytes(training_memory(run))),
    ]
    if run.train.shard:
        lines.append(("memory of each node to load the model", _gigabytes(loading_bytes(run))))
    return lines


def training_memory(run: config.Config) -> float:
    """Bytes of one training process, on its GPU if it has one."""
    train = run.train
    weights = parameters(run.model) * BYTES["float32"]
    needed: float = _OPTIMIZER_STEP * weights
    if train.shard:
        needed = needed / train.processes + 2 * weights  # gathered weights and gradients, at most
    if train.precision_on(run.compute.device) == "bfloat16":
        needed += parameters(run.model) * BYTES["bfloat16"]  # a copy until the backward pass
    sequences = math.ceil(_most_sequences(train) / train.micro_batches)
    return needed + sequences * activation_bytes(run)


def training_hours(run: config.Config, tflops: float) -> float:
    """Hours of training; processes wait for the slowest, which has the most sequences."""
    share = _most_sequences(run.train) / run.train.batch_size
    return _training_flops(run) * share / (3600e12 * tflops)


def _training_flops(run: config.Config) -> float:
    return mean_flops_per_token(run.model, run.train).total * run.training_tokens


def _most_sequences(train: config.TrainConfig) -> int:
    """Sequences of the process that has the most."""
    return math.ceil(train.batch_size / train.processes)


def _checkpoints(run: config.Config) -> int:
    """Checkpoints to analyse, including the untrained or the published model."""
    if run.model.source == "published":
        return 1
    return 1 + len(config.checkpoint_iterations(run.train))


# --- analyses -------------------------------------------------------------------------------------


def analyses(run: config.Config) -> tuple[float, int]:
    """FLOPs on whole sequences, and tokens that are decoded one by one, for the figures of the
    paper; without any exit.

    Trajectories of every checkpoint; then quality, cost-matched exits and latency at all operating
    points. Under criteria that need predictions, text is decoded token by token where predictions
    pass the remaining layers. Timed tokens are decoded twice.
    """
    from twoscale.exits.criteria import CRITERIA  # here, because it imports torch

    exits, length = run.exits, run.model.context_length
    points = {name: len(entry.thresholds) for name, entry in exits.criteria.items()}
    sequential = 0  # operating points at which text is decoded
    for name, number in points.items():
        needs_readout = name in CRITERIA and CRITERIA[name].needs_readout
        if needs_readout and exits.readout != "head":
            sequential += number
    total = sum(points.values())
    # at each point but those of `fixed`: all draws of random exits, and the fixed ones once
    matched = (total - points.get("fixed", 0)) * (exits.random_draws + 1)
    passes = run.quality_sequences * (total - sequential + matched)
    flops = passes * _forward_flops(run.model, exits.max_loops)
    passes = _checkpoints(run) * run.trajectory_sequences
    flops += passes * _forward_flops(run.model, run.trajectories.loops)
    rounds = exits.latency_repeats + 1  # the first warms up
    timed = 2 * exits.latency_tokens * rounds * total
    # pairs of tokens whose loop steps are those of one at full depth, and of one that hardly loops
    timed += 2 * exits.latency_segments * (exits.cost_repeats + 1) * len(points)
    decoded = length * (rounds + run.quality_sequences) * sequential
    return length * flops, timed + decoded


def _forward_flops(model: config.ModelConfig, loops: int) -> float:
    """FLOPs of a forward pass per token at the same loop count in all groups."""
    return flops_per_token(model, [loops] * len(model.groups)).forward


def _token_seconds(run: config.Config, bandwidth: float) -> float:
    """Seconds of a token in decoding, at the bandwidth of the memory in GB/s: the weights are read
    for one row, those of a layer each time it is applied, and the head's.
    """
    model = run.model
    weights = model.hidden_size * model.padded_vocab_size  # head
    layers = 0
    for number in range(1, model.num_layers + 1):
        applied = run.exits.max_loops if model.is_looped(number) else 1
        layers += applied
        weights += applied * layer_matrices(model, number)
    return weights * BYTES[run.exits.dtype] / (1e9 * bandwidth) + layers * _LAYER_SECONDS


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


# --- claims ---------------------------------------------------------------------------------------


def notes(run: config.Config) -> list[str]:
    """Sentences on claims that the run cannot uphold, whatever it measures."""
    from twoscale.claims.verdicts import CLAIMS  # here, because it imports pandas

    sentences = []
    for claim in CLAIMS:
        if obstacle := claim.needs.obstacle(_extent(run)):
            verdict, reason = obstacle
            sentences.append(f"claim {claim.number} ({claim.title}): {verdict}: {reason}.")
    return sentences


def _extent(run: config.Config) -> "Extent":
    from twoscale.claims.evidence import Extent  # here, because it imports pandas

    iterations = config.checkpoint_iterations(run.train)
    return Extent(
        groups=len(run.model.group_labels),
        loop_steps=run.trajectories.loops,
        sequences=run.trajectory_sequences,
        checkpoints=sum(iteration > run.train.warmup_iterations for iteration in iterations),
        max_loops=run.exits.max_loops,
        published=run.model.source == "published",
    )
