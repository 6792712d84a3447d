"""What a run costs, counted from its settings before anyone spends it: FLOPs, parameters, bytes, jobs.

FLOPs are those of matrix products, two per multiply-add, as torch's own counter has them; norms,
activations and softmax are left out. Attention is counted over all pairs of positions ("full"), which is
what a plain product computes, or over the pairs that a causal mask keeps ("causal"), which is what the task
needs and what utilisation is stated against.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from twoscale import config
from twoscale import tables

BYTES = {"bool": 1, "int32": 4, "float32": 4, "int64": 8, "float64": 8, "string": 4}  # a text is a dictionary's key


@dataclass(frozen=True)
class Flops:
    """FLOPs per token of one training pass."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def layer_forward(model: config.ModelConfig, causal: bool) -> float:
    """One layer on one token: projections and MLP 24 C², attention scores and averages over T positions 4 T C."""
    pairs = (model.context_length + 1) / 2 if causal else model.context_length
    return 24 * model.hidden_size**2 + 4 * pairs * model.hidden_size


def flops_per_token(
    model: config.ModelConfig,
    loops: Sequence[float],
    backprop_depth: int | None = None,
    recompute: bool = False,
    causal: bool = True,
) -> Flops:
    """FLOPs per token of forward and backward at these loop counts, one per group.

    A backward pass costs two products for each of the forward pass, but no gradient flows into the state
    before the first step that has one, and steps before it have none at all. `recompute` adds a second
    forward pass of the steps with gradient.
    """
    square = 2 * model.hidden_size**2  # one C x C product
    layer = layer_forward(model, causal)
    head = 2 * model.hidden_size * model.padded_vocab_size
    looped = sum(len(group) for group in model.groups)
    forward = (model.num_layers - looped) * layer + head
    backward = 2 * forward
    for group, steps in zip(model.groups, loops, strict=True):
        step = square + len(group) * layer
        followed = steps if backprop_depth is None else min(steps, backprop_depth)
        starts_from_gradient = model.state_init.startswith("input") and followed == steps
        forward += square + steps * step  # the input's half of the adapter once
        backward += 2 * square + 2 * followed * step - (0 if starts_from_gradient else square)
        backward += followed * step if recompute else 0
    return Flops(forward, backward)


def mean_flops_per_token(model: config.ModelConfig, train: config.TrainConfig, causal: bool = True) -> Flops:
    """At the mean loop count r + 1 of the sampler; with truncation the few draws below its depth are neglected."""
    loops = [model.mean_loops + 1] * len(model.groups)
    return flops_per_token(model, loops, train.backprop_depth, train.recompute, causal)


def parameters(model: config.ModelConfig) -> int:
    """Trained numbers, the tied head counted once."""
    per_layer = 12 * model.hidden_size**2 + 4 * model.hidden_size
    embeddings = (model.padded_vocab_size + model.context_length) * model.hidden_size
    return embeddings + model.num_layers * per_layer + 2 * len(model.groups) * model.hidden_size**2 + model.hidden_size


def cache_bytes(model: config.ModelConfig, slots: int, dtype: str) -> int:
    """Keys and values of one sequence of a whole block in decoding, with `slots` per looped layer."""
    looped = sum(len(group) for group in model.groups)
    return 2 * (model.num_layers - looped + looped * slots) * model.context_length * model.hidden_size * BYTES[dtype]


def row_bytes(table: str) -> int:
    """One row of a table in memory; on disk parquet packs repeated keys closer."""
    return sum(BYTES[dtype] for dtype in tables.columns(table).values())


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
    """What a run will take, from its settings alone."""
    model, train = run.model, run.train
    segments = len(config.checkpoint_iterations(train))
    tokens = train.iterations * train.batch_size * model.context_length
    flops = mean_flops_per_token(model, train).total
    looped = len(model.groups)
    weight_bytes = parameters(model) * BYTES["float32"]
    measured = run.trajectory_sequences * model.context_length  # tokens a checkpoint
    loop_rows = measured * looped * (run.trajectories.loops + 1)
    path_rows = measured * looped
    drift_rows = measured * len(model.boundary_labels) * 4  # readings of the next group's x^0
    places = 1 + model.num_layers - sum(map(len, model.groups)) + looped * (run.trajectories.loops + 1)
    return Plan(
        parameters=parameters(model),
        iterations=train.iterations,
        tokens=tokens,
        flops_per_token=flops,
        training_flops=flops * tokens,
        training_flops_full_attention=mean_flops_per_token(model, train, causal=False).total * tokens,
        training_jobs=segments,
        analysis_jobs=segments + 1,
        # GPT-2's tokens can be counted while text is collected, those of an own tokenizer not
        text=run.data.train_tokens if run.tokenizer.name == "gpt2" else run.data.train_characters,
        text_unit="tokens" if run.tokenizer.name == "gpt2" else "characters",
        checkpoint_bytes=(segments + 1) * weight_bytes,
        # two moments to start from, and a partial state of weights and moments beside the one it replaces
        optimizer_bytes=(2 + 3 + 3) * weight_bytes,
        states_bytes=places * model.context_length * model.hidden_size * BYTES["float32"],
        table_bytes=(segments + 1)
        * (
            loop_rows * row_bytes("trajectories")
            + path_rows * row_bytes("token_paths")
            + drift_rows * row_bytes("token_drift")
        ),
        cache_bytes=cache_bytes(model, run.exits.max_loops, run.exits.dtype),
    )
