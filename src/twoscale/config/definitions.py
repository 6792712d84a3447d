"""Values that jobs compute from a config: sizes of a model, names of groups, types of thresholds,
loop counts.

The fingerprint of the code covers this module for every job with a model. Everything else that a
job needs of the config reaches it as a value in its params. Nothing here needs pydantic, so a
released model contains this module as it is (`twoscale.export`).
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from twoscale.base import InputError

NOISE_STD = math.sqrt(2 / 5)  # of the initial state, before truncation at three deviations ([G])


def boundary_label(left: str, right: str) -> str:
    """Name of the boundary between two successive groups in tables: "4->5-6"."""
    return f"{left}->{right}"


def whole_sequences(tokens: int, context_length: int) -> int:
    """Number of whole sequences of `context_length` in `tokens`, at least one."""
    return max(1, tokens // context_length)


def init_name(adapter_init: str, adapter_share: float) -> str:
    """Name of an adapter initialisation in tables and names of runs: "random", or the share of the
    state, "0.25".
    """
    return adapter_init if adapter_init == "random" else str(adapter_share).removesuffix(".0")


class ModelSizes:
    """Sizes of a model that follow from the keys of its config, which a subclass has as
    attributes.
    """

    if TYPE_CHECKING:  # annotations outside this block would be fields of the config
        num_layers: int
        num_heads: int
        num_kv_heads: int | None
        looped_kv_heads: int | None
        hidden_size: int
        mlp_size: int | None
        looped_mlp_size: int | None
        vocab_size: int
        vocab_multiple: int
        groups: tuple[tuple[int, ...], ...]
        mean_loops: float
        rotary_channels: int | None
        embedding_scale: float | None
        state_init: str
        loop_noise: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def mlp_width(self) -> int:
        return self.mlp_size or 4 * self.hidden_size

    def is_looped(self, number: int) -> bool:
        return any(number in group for group in self.groups)

    def kv_heads_of(self, number: int) -> int:
        return (self.is_looped(number) and self.looped_kv_heads) or self.kv_heads

    def mlp_width_of(self, number: int) -> int:
        return (self.is_looped(number) and self.looped_mlp_size) or self.mlp_width

    @property
    def value_gate_channels(self) -> int:
        return min(32, self.hidden_size)

    @property
    def rotated_channels(self) -> int:
        return self.rotary_channels or self.head_dim

    @property
    def embedding_factor(self) -> float:
        return math.sqrt(self.hidden_size) if self.embedding_scale is None else self.embedding_scale

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: the vocabulary size rounded up to a multiple."""
        return math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple

    @property
    def typical_loops(self) -> int:
        """The whole number of loop steps next to `mean_loops`, at least 1."""
        return max(1, round(self.mean_loops))

    @property
    def group_labels(self) -> tuple[str, ...]:
        """Names of the groups in tables: "4", "5-6", "7"."""
        return tuple(
            str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in self.groups
        )

    @property
    def boundary_labels(self) -> tuple[str, ...]:
        """Names of the boundaries in tables: between successive groups "4->5-6", "5-6->7".

        Around the only group of a model "prelude->3-6" ("embedding->3-6" without unlooped layers
        before it), and "3-6->coda" where unlooped layers follow.
        """
        if len(self.groups) != 1:
            return tuple(boundary_label(left, right) for left, right in pairwise(self.group_labels))
        (core,), (label,) = self.groups, self.group_labels
        entry = f"{'prelude' if core[0] > 1 else 'embedding'}->{label}"
        return (entry, f"{label}->coda") if core[-1] < self.num_layers else (entry,)

    @property
    def draws_noise(self) -> bool:
        """Whether the states of a token depend on the seed of the noise."""
        return bool(self.groups) and ("noise" in self.state_init or self.loop_noise > 0)

    @property
    def effective_depth(self) -> float:
        """Layers applied per token at the mean loop count: a looped layer counts `mean_loops`
        times.
        """
        looped = sum(len(group) for group in self.groups)
        return self.num_layers - looped + looped * self.mean_loops


# Type of the thresholds of each built-in exit criterion; criteria from a user's file take positive
# numbers.
THRESHOLD_TYPES: dict[str, type] = {
    name: int if name in ("fixed", "argmax_stability") else float
    for name in (
        *(
            "fixed",
            "step_norm",
            "step_norm_relative",
            "kl",
            "acceleration",
            "acceleration_normalized",
        ),
        *(
            "acceleration_relative",
            "entropy_diff",
            "argmax_stability",
            "cosine",
            "minp_kl",
            "confidence",
            "margin",
        ),
        *("entropy", "exit_gate"),
    )
}


def check_threshold(
    criterion: str, threshold: Any, max_loops: int | None, where: str, loops_key: str
) -> None:
    """Refuse a threshold that is not a positive finite number of the criterion's type, or `fixed`
    above `max_loops`.

    The sentence begins with `where`, such as the key of the threshold, and calls `max_loops` by its
    key `loops_key`.
    """
    whole = THRESHOLD_TYPES.get(criterion, float) is int
    good_type = isinstance(threshold, int if whole else (int, float)) and not isinstance(
        threshold, bool
    )
    if not good_type or not math.isfinite(threshold) or threshold <= 0:
        expected = "a whole number of loops" if whole else "a number"
        raise InputError(f"{where}: found {threshold!r}, expected {expected} > 0.")
    if criterion == "fixed" and max_loops is not None and threshold > max_loops:
        raise InputError(f"{where}: found {threshold}, expected at most {loops_key} = {max_loops}.")


# Loop counts at which a depth card has a row, as multiples of the trained loops.
MULTIPLES = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def loop_counts(
    trained: float, multiples: Iterable[float] = MULTIPLES, most: int | None = None
) -> tuple[int, ...]:
    """Whole loop counts next to the multiples of `trained`, which is one of them, at least 1 and at
    most `most`.
    """
    counts = {max(1, round(multiple * trained)) for multiple in (1.0, *multiples)}
    return tuple(sorted(count for count in counts if most is None or count <= most))
