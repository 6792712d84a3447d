"""The cost of a run, computed from its config: FLOPs, parameters, bytes, jobs."""

from dataclasses import dataclass

from twoscale import config, tables
from twoscale.model.flops import BYTES, Flops, cache_bytes, flops_per_token, parameters

# Columns of float32 measures in the per-token tables; a test compares them with the registry of measures.
MEASURES = {"trajectories": 8, "token_paths": 5}
REFERENCE_STATES = 4  # of the drift, see `twoscale.dynamics.trajectories`


def mean_flops_per_token(model: config.ModelConfig, train: config.TrainConfig, causal: bool = True) -> Flops:
    """At the mean loop count r + 1 of the sampler; with truncation the few draws below its depth are neglected."""
    loops = [model.mean_loops + 1] * len(model.groups)
    return flops_per_token(model, loops, train.backprop_depth, train.recompute, causal)


def row_bytes(table: str) -> int:
    """One row of a table in memory; on disk parquet packs repeated keys more tightly."""
    keys = sum(BYTES[dtype] for dtype in tables.columns(table).values())
    return keys + MEASURES.get(table, 0) * BYTES["float32"]


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
    looped = len(model.groups)
    weight_bytes = parameters(model) * BYTES["float32"]
    measured = run.trajectory_sequences * model.context_length  # tokens a checkpoint
    loop_rows = measured * looped * (run.trajectories.loops + 1)
    path_rows = measured * looped
    drift_rows = measured * len(model.boundary_labels) * REFERENCE_STATES
    states = 1 + model.num_layers - sum(map(len, model.groups)) + looped * (run.trajectories.loops + 1)
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
        # two moments to start from, and a partial state of weights and moments beside the one it replaces
        optimizer_bytes=(2 + 3 + 3) * weight_bytes,
        states_bytes=states * model.context_length * model.hidden_size * BYTES["float32"],
        table_bytes=(segments + 1)
        * (
            loop_rows * row_bytes("trajectories")
            + path_rows * row_bytes("token_paths")
            + drift_rows * row_bytes("token_drift")
        ),
        cache_bytes=cache_bytes(model, run.exits.max_loops, run.exits.dtype),
    )


def plan_rows(plan: Plan, tflops: float) -> list[tuple[str, str]]:
    """Label and value of each line of a printed plan; hours are at `tflops` sustained tera-FLOP/s."""
    hours = plan.training_flops / (tflops * 1e12) / 3600
    return [
        ("parameters", f"{plan.parameters / 1e6:.1f} M"),
        ("iterations", f"{plan.iterations:,}"),
        ("tokens trained on", f"{plan.tokens / 1e6:,.1f} M"),
        ("FLOPs per token, causal attention", f"{plan.flops_per_token / 1e9:.2f} G"),
        ("training FLOPs, causal attention", f"{plan.training_flops:.3g}"),
        ("training FLOPs, full attention", f"{plan.training_flops_full_attention:.3g}"),
        (f"hours of training at {tflops:g} TFLOP/s", f"{hours:.2f}"),
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
    return f"{count / 1e9:.3f} GB"
