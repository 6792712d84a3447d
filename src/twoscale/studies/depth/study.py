"""Quality and geometry through the loops: lens, quality at fixed loop counts, depth card."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twoscale.base import InputError, did_you_mean
from twoscale.config.data import text_label
from twoscale.config.definitions import loop_counts
from twoscale.figures.catalogue import Figure, inputs_from, is_published
from twoscale.model.flops import parameters
from twoscale.tables import SEQUENCE_STATISTICS
from twoscale.tables import table as columns

if TYPE_CHECKING:
    from twoscale.config import Config
    from twoscale.workflow.runs import Runs


def lens_steps(config: "Config") -> list[int]:
    """Loop steps that the lens decodes, ascending.

    They are 0, the powers of two and the numbers half way between them, the mean of training and
    the last one.
    """
    model = config.model
    last = max(model.typical_loops, round(config.lens.max_multiple * model.mean_loops))
    steps = {0, 1, model.typical_loops, last}
    for shift in range(last.bit_length()):
        steps |= {2 << shift, 3 << shift}  # 2^n and 1.5 times 2^n
    return sorted(k for k in steps if k <= last)


def card_loops(config: "Config") -> list[int]:
    """Loop counts of the depth card, ascending; 1 for a model without groups."""
    if not config.model.groups:
        return [1]
    return list(loop_counts(config.model.mean_loops, config.depth_card.multiples))


def trained_loops(config: "Config") -> int:
    return config.model.typical_loops if config.model.groups else 1


# --- tables and figures ---------------------------------------------------------------------------

INTERVAL = {
    "low": ("float64", "lower end of the 95 % interval"),
    "high": ("float64", "upper end of the 95 % interval"),
}
OF_GROUP = ("string", "looped group; empty for quantities of the prediction")
TABLES = {
    # One row per (group, loop step, held-out sequence) at the last checkpoint: what x^k predicts
    # through the layers after its group, as means over the tokens of the sequence.
    "lens": columns(
        "run iteration group k sequence document tokens ce",
        k=("int32", "loop steps before the decoded state"),
        entropy=("float64", "entropy of the prediction in nats per token"),
        log_rank=(
            "float64",
            "logarithm of the correct token's rank; exp of the mean is a geometric mean",
        ),
        right=("float64", "share of tokens whose most likely next token is correct"),
        lost=(
            "float64",
            "share of tokens predicted wrongly, but correctly at an earlier k > 0; null at k = 0",
        ),
        lost_since_mean=(
            "float64",
            "the same share among tokens predicted correctly at the mean loops of training",
        ),
        agreement=(
            "float64",
            "share of tokens whose most likely next token is that at the mean loops of training",
        ),
    ),
    # One row per (checkpoint, group, loop step, sequence, measure), from one pass, as in
    # "loop_sequences".
    "depth_states": columns("iteration group k sequence document measure", **SEQUENCE_STATISTICS),
    # One row per (loop count, group, quantity), with 95 % intervals over documents.
    "depth_card": columns(
        "run iteration loops multiple group quantity tokens value low high",
        loops=("int32", "loop count of every group"),
        multiple=("float64", "loops divided by the trained loop count"),
        group=OF_GROUP,
        quantity=(
            "string",
            "ce, excess (ce minus the lowest one), a column of depth_quality or a measure of"
            " depth_states",
        ),
        value=(
            "float64",
            "mean over tokens; for a measure of depth_states, of the group at k = loops",
        ),
        **INTERVAL,
    ),
    # Findings of the card, one row per (group, quantity), with 95 % intervals over documents.
    "depth_findings": columns(
        "run iteration group quantity value low high",
        group=OF_GROUP,
        quantity=(
            "string",
            "such as best_loops, plateau_first, loop_gain; regime, and its numbers",
        ),
        value=(
            "float64",
            "loop counts, nats per token, an exponent or a share; null if not measured",
        ),
        **INTERVAL,
        statement=("string", "the finding in words"),
    ),
}

DRAW = "twoscale.studies.depth.draw"
FIGURES = (
    Figure(
        "lens",
        inputs_from("lens"),
        title="Lens: through the loops",
        loops=lambda config: lens_steps(config)[-1],
        values=lambda config: {
            "mean_loops": config.model.mean_loops,
            "typical_loops": config.model.typical_loops,
        },
        sentence=f"{DRAW}.lens_sentence",
    ),
    Figure(
        "scaling",
        inputs_from("scaling"),
        title="Quality against loops",
        loops=lambda config: max(config.scaling.loops),
        values=lambda config: {"mean_loops": config.model.mean_loops},
        sentence=f"{DRAW}.scaling_sentence",
    ),
    Figure(
        "depth_card",
        inputs_from("depth_card", "depth_findings"),
        title="Depth card",
        loops=lambda config: card_loops(config)[-1],
        sentence=f"{DRAW}.card_sentence",
    ),
)

# --- inputs and params of its rules ---------------------------------------------------------------


def unlooped_run(runs: "Runs", config: "Config") -> str | None:
    """The run without loops that a run is compared with. InputError for an unknown one."""
    name = config.depth_card.unlooped
    if name is not None and name not in runs.configs:
        guess = did_you_mean(name, runs.configs)
        raise InputError(
            f"config key depth_card.unlooped: found {name}, expected one of the runs"
            f" {', '.join(runs)}{guess}."
        )
    return name


def unlooped_loops(runs: "Runs", config: "Config") -> int | None:
    """The trained loop count of the run without loops, if there is one."""
    name = unlooped_run(runs, config)
    return None if name is None else trained_loops(runs[name])


def unlooped_quality(runs: "Runs") -> Callable:
    """Input function: the quality of the run without loops, if there is one."""

    def files(wildcards: Any) -> list[str]:
        name = unlooped_run(runs, runs.of(wildcards)[1])
        return [] if name is None else [f"results/{name}/depth_card/quality.parquet"]

    return files


def unlooped_text(runs: "Runs") -> Callable:
    """Input function: the metadata of its text."""

    def files(wildcards: Any) -> list[str]:
        name = unlooped_run(runs, runs.of(wildcards)[1])
        return [] if name is None else [f"results/{runs.data.data_run(name)}/data/tokens.json"]

    return files


def identity(config: "Config") -> dict[str, Any]:
    """The model and the text of the measurement: rows of the page."""
    model = config.model
    weights, loops = "trained here", "r of training, rounded"
    if is_published(config):
        weights, loops = model.folder or f"{model.repository} at {model.revision}", "as published"
    sizes = f"{model.num_layers} layers, hidden size {model.hidden_size}"
    groups = ", ".join(model.group_labels)
    tokens = config.whole_tokens("depth_card")
    text = f"{text_label(config.data)}, {tokens} held-out tokens"
    return {
        "weights": weights,
        "model": f"{parameters(model):,} parameters, {sizes}, looped layers {groups}",
        "trained loops": f"{model.typical_loops} ({loops})",
        "text": f"{text} in sequences of {model.context_length}",
        "precision": config.depth_card.dtype,
        "seed": config.seed,
    }
