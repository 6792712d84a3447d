"""Config of exit criteria and of their benchmark."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from twoscale.base import InputError, did_you_mean
from twoscale.config.thresholds import THRESHOLD_TYPES, check_threshold
from twoscale.config.types import (
    FILE_NAME,
    Count,
    Distinct,
    Dtype,
    Flag,
    InBatches,
    NonNegative,
    Positive,
    Section,
    Threshold,
    key,
    require,
    sort_loops,
)

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class CriterionConfig(Section):
    """Thresholds of one exit criterion. Criteria that are not built in also need a Python file and class."""

    thresholds: Annotated[tuple[Threshold, ...], *Distinct] = Field(description="Values of tau to evaluate.")
    file: str | None = Field(
        default=None, description="Python file of the criterion.", min_length=1, exclude_if=lambda file: file is None
    )
    class_name: str | None = Field(
        default=None,
        alias="class",
        description="Class in that file.",
        min_length=1,
        exclude_if=lambda class_name: class_name is None,
    )


def typed_criteria(criteria: Mapping[str, CriterionConfig]) -> dict[str, CriterionConfig]:
    """The criteria with thresholds in the criterion's type, where that loses nothing."""
    return {name: entry.model_copy(update={"thresholds": _typed(name, entry)}) for name, entry in criteria.items()}


def _typed(name: str, entry: CriterionConfig) -> tuple[int | float, ...]:
    if THRESHOLD_TYPES.get(name) is not int:
        return tuple(map(float, entry.thresholds))
    return tuple(int(value) if value == int(value) else value for value in entry.thresholds)


Criteria = Annotated[dict[str, CriterionConfig], Field(min_length=1), AfterValidator(typed_criteria)]


def check_criteria(key: str, criteria: Mapping[str, CriterionConfig], max_loops: int | None = None) -> None:
    """Refuse a criterion that is neither built in nor has a file, and thresholds that do not fit their criterion."""
    for name, entry in criteria.items():
        _check_origin(f"{key}.{name}", name, entry)
        for threshold in entry.thresholds:
            check_threshold(name, threshold, max_loops, f"config key {key}.{name}.thresholds", "exits.max_loops")


def _check_origin(key: str, name: str, entry: CriterionConfig) -> None:
    named = bool(re.fullmatch(FILE_NAME, name))
    require(named, key, f"the name {name!r}", "letters, digits, '.', '_' and '-'")
    builtin = name in THRESHOLD_TYPES
    absent = "class" if entry.class_name is None else "file"
    both = (entry.file is None) == (entry.class_name is None)
    require(both, key, f"no {absent}", "a file and a class, or neither")
    other = "another name for a criterion from a file: this one is built in"
    require(not builtin or entry.file is None, f"{key}.file", repr(entry.file), other)
    if not builtin and entry.file is None:
        raise InputError(
            f"config key {key}: unknown criterion, expected one of {', '.join(THRESHOLD_TYPES)}, or a file and a class"
            f"{did_you_mean(name, THRESHOLD_TYPES)}."
        )


def grids(**thresholds: list[float]) -> dict[str, CriterionConfig]:
    """The default of a key `criteria`."""
    return typed_criteria(
        {name: CriterionConfig.model_validate({"thresholds": values}) for name, values in thresholds.items()}
    )


STATE_GRID = [1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0]
RELATIVE_GRID = [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3]
PROBABILITY_GRID = [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99]
KL_GRID = [1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1]

# Dense grids of thresholds by criterion.
DENSE_GRIDS: dict[str, list[float]] = {
    "step_norm": STATE_GRID,
    "step_norm_relative": RELATIVE_GRID,
    "kl": KL_GRID,
    "acceleration": STATE_GRID,
    "acceleration_normalized": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    "acceleration_relative": RELATIVE_GRID,
    "entropy_diff": [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3],
    "argmax_stability": [1, 2, 3, 5, 8, 12],
    "cosine": [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1],
    "minp_kl": KL_GRID,
    "confidence": PROBABILITY_GRID,
    "margin": PROBABILITY_GRID,
    "entropy": [0.03, 0.1, 0.3, 0.7, 1.5, 2.5, 3.5, 4.5, 6.0],
}


def half_decades(largest: float) -> list[float]:
    """Thresholds from 1e-5, the smallest of App. D, to `largest`, two in a decade: 1e-5, 3.16e-5, 1e-4 …"""
    exponents = range(-10, round(2 * math.log10(largest)) + 1)
    return [float(f"{10 ** (exponent / 2):.3g}") for exponent in exponents]


# In the criterion's unit. State norms are about the root of the hidden size, so every token exits at once at 31.6.
LARGEST_STEP, LARGEST_KL = 31.6, 1.0


class ExitsConfig(Section):
    """Quality and latency of exit criteria at the last checkpoint."""

    max_loops: Count = key(30, "Maximum number of loop steps per token and group.", source="Fig. 5, App. D")
    criteria: Criteria = key(
        grids(
            fixed=[30],
            step_norm=half_decades(LARGEST_STEP),
            kl=half_decades(LARGEST_KL),
            acceleration=half_decades(LARGEST_STEP),
        ),
        "Exit criteria and their thresholds. App. D has 1e-5, 1e-4, 1e-3 and 1e-2. Claim 10 compares criteria at "
        "equal quality and requires finer grids that extend to a loss of quality (ours). null removes a criterion "
        "that the defaults or the preset include.",
        source="App. D",
    )
    readout: Literal["head", "remaining_layers"] = key(
        "head",
        "How to predict from a state inside a group: head applies the final norm and the head (§4, \"the model's "
        'decoder head"); remaining_layers [G] first applies the layers after the last group, and criteria that '
        "use predictions then process text position by position.",
        source="§4",
    )
    kv_slots: Count | None = key(
        None,
        "KV cache slots per token, shared by the loop steps as in [G]; text is then processed position by "
        "position. null: one slot per loop step.",
    )
    cuda_graphs: Flag = key(
        True,
        "Decode by replaying captured CUDA graphs. With one slot per loop step, several loop steps run at once, "
        "ahead of the exit decisions. CUDA only.",
    )
    compile: Flag = key(
        True,
        "Compile loop steps before capturing them (cuda_graphs). If this is impossible, for example without "
        "Triton, eager steps are captured. CUDA only.",
    )
    dtype: Literal["float32", "float64", "bfloat16"] = key(
        "float32",
        "Precision of weights, states and decisions. bfloat16 halves the memory traffic, but rounds steps below "
        "about 1/256 of the state, which distorts criteria on steps.",
    )
    quality_tokens: Count = key(16_384, "Held-out tokens for cross-entropy and perplexity, in whole sequences.")
    quality_batch_size: Count = key(4, "Sequences per batch.")
    random_draws: Count = key(
        3,
        "Number of draws of random exits of equal cost, with which every criterion is compared. Each draw evaluates "
        "the text once more; fixed loops with the same mean need one more pass.",
    )
    latency_tokens: Count = key(64, "Timed tokens per repeat, spread over the context; at most model.context_length.")
    latency_segments: Count = key(
        4, "Number of positions in the context at which latency_tokens are timed. The preceding text is read untimed."
    )
    latency_repeats: Count = key(5, "Timed repeats.")

    def check(self, config: "CoreConfig") -> None:
        check_latency_tokens("exits", self.latency_tokens, config)

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"quality_tokens": config.quality_sequences, "latency_repeats": self.latency_repeats}


class ProbeConfig(Section):
    """Fit of the criterion `probe`: a linear classifier of states, fitted on training text at the last checkpoint. It
    is fitted only if `probe` is among the criteria of `exits`, `pareto` or `calibration`.
    """

    tokens: Count = key(
        4096,
        "Tokens of training text, in whole sequences spread over the text. Each token gives exits.max_loops "
        "samples of model.hidden_size + 2 float64 features, held in memory twice.",
    )
    tolerance: NonNegative = key(
        0.01,
        "A token has converged once its cross-entropy stays at most this many nats above the value at the last "
        "loop step.",
    )
    penalty: Positive = key(
        1e-4, "L2 penalty: factor of half the squared weights of the standardised features, added to the mean log loss."
    )
    batch_size: Count = key(4, "Sequences per batch; determines the memory use.")
    dtype: Dtype = key("float32", "Precision of the states.")


def check_latency_tokens(section: str, tokens: int, config: "CoreConfig") -> None:
    """Refuse more timed tokens than the context has."""
    most = config.model.context_length
    require(tokens <= most, f"{section}.latency_tokens", tokens, f"at most model.context_length = {most}")


class ScalingConfig(InBatches):
    """Quality at fixed loop counts, for every checkpoint (results/scaling.pdf)."""

    loops: Annotated[tuple[Count, ...], Field(min_length=1), AfterValidator(sort_loops)] = key(
        (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
        "Loop counts, the same in every group. Counts up to exits.max_loops also appear in pareto.pdf as fixed loops.",
    )
    tokens: Count = key(16_384, "Held-out tokens per checkpoint, in whole sequences.")
