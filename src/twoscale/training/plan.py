"""The cost of a run, computed from its config: FLOPs, parameters, bytes, jobs."""

import math
from dataclasses import dataclass
from typing import Self

from twoscale import config, tables
from twoscale.errors import InputError
from twoscale.model.flops import BYTES, Flops, cache_bytes, exit_gate_flops, flops_per_token, parameters
from twoscale.training.analyses import analyses, forward

# Columns of float32 measures in the per-token tables; a test compares them with the registry of measures.
MEASURES = {"trajectories": 8, "token_paths": 5}
REFERENCE_STATES = 4  # of the drift, see `twoscale.dynamics.trajectories`
PUBLISHED_BYTES = BYTES["bfloat16"]  # of a published weight
# Sizes of the weights that training has on disk beside its checkpoints, at most: two moments to start from, and a
# partial state of weights and moments beside the one that it replaces.
SEGMENT_STATES = 2 + 3 + 3
# Rates that a plan assumes unless they are given. On cpu: 0.03, measured on two threads (docs/benchmarks.md).
ASSUMED = {
    "cuda": {"tflops": 100.0, "analysis_tflops": 20.0, "bandwidth": 1000.0},
    "cpu": {"tflops": 0.03, "analysis_tflops": 0.03, "bandwidth": 10.0},
}
OPTIMIZER_STEP = 4  # weights, gradients and two moments
LOADED = 4  # weights and two moments of a file, and the weights of the model that takes them


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


def mean_flops_per_token(model: config.ModelConfig, train: config.TrainConfig, causal: bool = True) -> Flops:
    """At the mean loop count r + 1 of the sampler; with truncation the few draws below its depth are neglected."""
    loops = [model.mean_loops + 1] * len(model.groups)
    flops = flops_per_token(model, loops, train.backprop_depth, train.recompute, causal)
    return flops if train.exit_gate is None else flops + exit_gate_flops(model, loops[0], causal)


def row_bytes(table: str) -> int:
    """One row of a table in memory; on disk parquet packs repeated keys more tightly."""
    keys = sum(BYTES[dtype] for dtype in tables.columns(table).values())
    return keys + MEASURES.get(table, 0) * BYTES["float32"]


def states_per_token(run: config.Config) -> int:
    """States of a token that Fig. 1 has."""
    model = run.model
    return 1 + model.num_layers - sum(map(len, model.groups)) + len(model.groups) * (run.trajectories.loops + 1)


def states_bytes(run: config.Config) -> int:
    """Bytes of the states of one sequence, for Fig. 1."""
    return states_per_token(run) * run.model.context_length * run.model.hidden_size * BYTES["float32"]


def bytes_per_token(run: config.Config) -> int:
    """Bytes of the rows of a token in the per-token tables of a checkpoint."""
    looped = len(run.model.groups)
    return (
        looped * (run.trajectories.loops + 1) * row_bytes("trajectories")
        + looped * row_bytes("token_paths")
        + len(run.model.boundary_labels) * REFERENCE_STATES * row_bytes("token_drift")
    )


@dataclass(frozen=True)
class Plan:
    """Quantities of one run, each a number with its unit in the name."""

    parameters: int
    iterations: int
    tokens: int
    flops_per_token: float
    training_flops: float
    training_flops_full_attention: float
    training_jobs: int
    analysis_jobs: int
    text: int | None
    text_unit: str
    checkpoint_bytes: int
    optimizer_bytes: int
    states_bytes: int
    table_bytes: int
    cache_bytes: int


def plan(run: config.Config) -> Plan:
    """The cost of a run, from its config alone."""
    model, train = run.model, run.train
    segments = len(config.checkpoint_iterations(train))
    tokens = train.iterations * train.batch_size * model.context_length
    flops = mean_flops_per_token(model, train).total
    weight_bytes = parameters(model) * BYTES["float32"]
    measured = run.trajectory_sequences * model.context_length  # tokens a checkpoint
    return Plan(
        parameters=parameters(model),
        iterations=train.iterations,
        tokens=tokens,
        flops_per_token=flops,
        training_flops=flops * tokens,
        training_flops_full_attention=mean_flops_per_token(model, train, causal=False).total * tokens,
        training_jobs=segments,
        analysis_jobs=segments + 1,
        # tokens of GPT-2 can be counted while text is collected, those of a tokenizer trained on it cannot
        text=run.data.train_tokens if run.tokenizer.name == "gpt2" else run.data.train_characters,
        text_unit="tokens" if run.tokenizer.name == "gpt2" else "characters",
        checkpoint_bytes=(segments + 1) * weight_bytes,
        optimizer_bytes=SEGMENT_STATES * weight_bytes,
        states_bytes=states_bytes(run),
        table_bytes=(segments + 1) * measured * bytes_per_token(run),
        cache_bytes=cache_bytes(model, run.exits.max_loops, run.exits.dtype),
    )


# --- memory of training ------------------------------------------------------------------------------------------


def activation_bytes(run: config.Config) -> float:
    """Bytes in float32 that one sequence keeps for the backward pass at the mean loop count r + 1, without its logits.

    A layer keeps 8 hidden states, 2 more with both norms of a sandwich, and 2 states of the MLP (4 if gated), the
    adapter 1; with train.recompute a loop step keeps its state only. With train.exit_gate the layers behind the group
    decode every state, and three stacks of states are kept. A test compares this with autograd.
    """
    model, train = run.model, run.train
    layer = (10 if model.norms == "sandwich" else 8) * model.hidden_size
    layer += (4 if model.mlp == "gated" else 2) * model.mlp_width
    steps = min(model.mean_loops + 1, train.backprop_depth or math.inf)
    adapter = model.hidden_size if model.injection == "projection" else 0
    kept = layer * (model.num_layers - sum(map(len, model.groups)))
    for group in model.groups:
        step = len(group) * layer + adapter
        kept += step + steps * model.hidden_size if train.recompute else steps * step
    if train.exit_gate is not None:
        behind = model.num_layers - model.groups[-1][-1]
        kept += model.mean_loops * behind * layer + 3 * (model.mean_loops + 1) * model.hidden_size
    return kept * model.context_length * BYTES["float32"]


def memory_rows(run: config.Config) -> list[tuple[str, str]]:
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


def gathered_bytes(model: config.ModelConfig) -> int:
    """Bytes of the weights and gradients in float32 that train.shard gathers on a process at a time.

    Those of everything but the unlooped layers, of which two are gathered at a time, one ahead. FSDP's buffers for
    communication are not counted.
    """
    unlooped = model.num_layers - sum(map(len, model.groups))
    layer = parameters(model) - parameters(model.model_copy(update={"num_layers": model.num_layers - 1}))
    return 2 * (parameters(model) - max(0, unlooped - 2) * layer) * BYTES["float32"]


def loading_bytes(run: config.Config) -> int:
    """Bytes of the CPU's memory that the processes of a node take to load a model for train.shard.

    Each has all weights and moments from the file, and the whole model, before it keeps its part.
    """
    loaded = LOADED * parameters(run.model) * BYTES["float32"]
    return loaded * (run.train.processes // run.train.nodes)


def _parts(train: config.TrainConfig) -> list[int]:
    """Sequences of each process, largest first."""
    share, rest = divmod(train.batch_size, train.processes)
    return [share + 1] * rest + [share] * (train.processes - rest)


def notes(run: config.Config) -> list[str]:
    """Sentences on what the config makes slow."""
    train = run.train
    if run.model.source == "published" or train.batch_size % train.processes == 0:
        return []
    idle = 1 - train.batch_size / (train.processes * _parts(train)[0])
    divisors = [count for count in range(1, train.batch_size + 1) if train.batch_size % count == 0]
    return [
        f"train.processes: {train.processes} does not divide train.batch_size = {train.batch_size}, so processes wait "
        f"for {idle:.0%} of the time; {', '.join(map(str, divisors))} divide it."
    ]


# --- analyses ----------------------------------------------------------------------------------------------------


def analysis_rows(run: config.Config, rates: Rates) -> list[tuple[str, str]]:
    """Label and value of the lines on the analyses of a trained run."""
    lines = []
    for name, supplementary in (("figures", False), ("supplementary", True)):
        cost = analyses(run, supplementary)
        hours = cost.parallel_flops / (rates.analysis_tflops * 1e12) / 3600
        decoding = cost.decoded_bytes / (rates.bandwidth * 1e9) / 3600
        lines += [
            (f"{name}: FLOPs of whole sequences, at most", f"{cost.parallel_flops:.3g}"),
            (f"{name}: hours at {rates.analysis_tflops:g} TFLOP/s", _decimals(hours)),
            (f"{name}: tokens read one by one, at most", f"{cost.decoded_tokens:,}"),
            (f"{name}: hours at {rates.bandwidth:g} GB/s", _decimals(decoding)),
        ]
    return lines


# --- published models --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedPlan:
    """Quantities of a run of a published model, each a number with its unit in the name.

    FLOPs and tokens of measurements are those without any exit, so they are upper bounds.
    """

    parameters: int
    weight_file_bytes: int
    weight_bytes: int
    trajectory_weight_bytes: int
    cache_bytes: int
    trajectory_states_bytes: int
    logits_bytes: int
    states_bytes: int
    table_bytes: int
    flops_per_token: float
    parallel_flops: float
    decoded_tokens: int
    decoded_bytes: float


def published_plan(run: config.Config) -> PublishedPlan:
    """The cost of measuring a published model, from its config alone."""
    model, exits, trajectories = run.model, run.exits, run.trajectories
    count, size = parameters(model), BYTES[exits.dtype]
    targets = [analyses(run, supplementary) for supplementary in (False, True)]
    tokens = run.trajectory_sequences * model.context_length
    states = trajectories.batch_size * model.context_length * model.hidden_size * BYTES[trajectories.dtype]
    return PublishedPlan(
        parameters=count,
        weight_file_bytes=count * PUBLISHED_BYTES,
        weight_bytes=count * size,
        trajectory_weight_bytes=count * BYTES[trajectories.dtype],
        cache_bytes=cache_bytes(model, exits.max_loops, exits.dtype),
        # twice: as a list, and stacked for the distances of the path
        trajectory_states_bytes=2 * (trajectories.loops + 1) * states,
        logits_bytes=exits.quality_batch_size * model.context_length * model.padded_vocab_size * size,
        states_bytes=states_bytes(run),
        table_bytes=tokens * bytes_per_token(run),
        flops_per_token=forward(model, exits.max_loops),
        parallel_flops=sum(target.parallel_flops for target in targets),
        decoded_tokens=sum(target.decoded_tokens for target in targets),
        decoded_bytes=sum(target.decoded_bytes for target in targets),
    )


def published_rows(plan: PublishedPlan, rates: Rates) -> list[tuple[str, str]]:
    """Label and value of each line of a printed plan of a published model."""
    parallel, decoding = (
        plan.parallel_flops / (rates.analysis_tflops * 1e12),
        plan.decoded_bytes / (rates.bandwidth * 1e9),
    )
    return [
        ("parameters", f"{_decimals(plan.parameters / 1e6, 1)} M"),
        ("weights on disk, in bf16", _gigabytes(plan.weight_file_bytes)),
        ("weights in memory, exit criteria", _gigabytes(plan.weight_bytes)),
        ("weights in memory, trajectories", _gigabytes(plan.trajectory_weight_bytes)),
        ("states of a batch of trajectories, in memory", _gigabytes(plan.trajectory_states_bytes)),
        ("logits of a batch of held-out text, in memory", _gigabytes(plan.logits_bytes)),
        ("cache of one decoded sequence, in memory", _gigabytes(plan.cache_bytes)),
        ("states for Fig. 1 on disk", _gigabytes(plan.states_bytes)),
        ("per-token tables on disk, at most", _gigabytes(plan.table_bytes)),
        ("FLOPs per token at all loops", f"{_decimals(plan.flops_per_token / 1e9)} G"),
        ("FLOPs of whole sequences, at most", f"{plan.parallel_flops:.3g}"),
        (f"hours of these at {rates.analysis_tflops:g} TFLOP/s", _decimals(parallel / 3600)),
        ("tokens read one by one, at most", f"{plan.decoded_tokens:,}"),
        (f"hours of these at {rates.bandwidth:g} GB/s", _decimals(decoding / 3600)),
    ]


# --- printing ----------------------------------------------------------------------------------------------------


def rows(run: config.Config, rates: Rates) -> list[tuple[str, str]]:
    """Label and value of each line of the printed plan of a run."""
    if run.model.source == "published":
        return published_rows(published_plan(run), rates)
    slowest = len(_parts(run.train)) * _parts(run.train)[0] / run.train.batch_size  # of processes that wait for it
    rate = rates.tflops * run.train.processes / slowest
    return plan_rows(plan(run), rates.tflops, rate) + memory_rows(run) + analysis_rows(run, rates)


def plan_rows(plan: Plan, tflops: float, rate: float) -> list[tuple[str, str]]:
    """Label and value of each line of a printed plan: `tflops` of one process, `rate` of all, in tera-FLOP/s."""
    hours = plan.training_flops / (rate * 1e12) / 3600
    return [
        ("parameters", f"{_decimals(plan.parameters / 1e6, 1)} M"),
        ("iterations", f"{plan.iterations:,}"),
        ("tokens trained on", f"{_decimals(plan.tokens / 1e6, 1)} M"),
        ("FLOPs per token, causal attention", f"{_decimals(plan.flops_per_token / 1e9)} G"),
        ("training FLOPs, causal attention", f"{plan.training_flops:.3g}"),
        ("training FLOPs, full attention", f"{plan.training_flops_full_attention:.3g}"),
        (f"hours of training at {tflops:g} TFLOP/s a process", _decimals(hours)),
        ("training jobs (one per checkpoint)", str(plan.training_jobs)),
        ("checkpoints to analyse", str(plan.analysis_jobs)),
        (f"text to collect, {plan.text_unit}", "all" if plan.text is None else f"{plan.text:,}"),
        ("checkpoints on disk", _gigabytes(plan.checkpoint_bytes)),
        ("optimizer and partial states on disk, at most", _gigabytes(plan.optimizer_bytes)),
        ("states for Fig. 1 on disk", _gigabytes(plan.states_bytes)),
        ("per-token tables on disk, at most", _gigabytes(plan.table_bytes)),
        ("cache of one decoded sequence, in memory", _gigabytes(plan.cache_bytes)),
    ]


def _gigabytes(count: int) -> str:
    return f"{_decimals(count / 1e9, 3)} GB"


def _decimals(value: float, digits: int = 2) -> str:
    """A number with this many decimals, or, where these would be zeros, with two significant digits."""
    return f"{value:,.{digits}f}" if value == 0 or value >= 10**-digits else f"{value:.2g}"
