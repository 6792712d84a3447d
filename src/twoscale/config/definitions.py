"""Values that jobs compute from a config, such as sizes of a model and names of groups.

The fingerprint of the code covers this module for every job with a model. Everything else that a
job needs of the config reaches it as a value in its params. Nothing here needs pydantic, so a
released model contains this module as it is (`twoscale.export`).
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

NOISE_STD = math.sqrt(2 / 5)  # of the initial state, before truncation at three deviations ([G])


def boundary_label(left: str, right: str) -> str:
    """Name of the boundary between two successive groups in tables: "4->5-6"."""
    return f"{left}->{right}"


def whole_sequences(tokens: int, context_length: int) -> int:
    """Number of whole sequences of `context_length` in `tokens`, at least one."""
    return max(1, tokens // context_length)


def init_name(adapter_init: str, adapter_share: float) -> str:
    """Name of an adapter initialisation in tables and runs: "random", or the share "0.25"."""
    return adapter_init if adapter_init == "random" else str(adapter_share).removesuffix(".0")


class ModelSizes:
    """Sizes of a model that follow from the keys of its config, attributes of a subclass."""

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
            f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]) for group in self.groups
        )

    @property
    def boundary_labels(self) -> tuple[str, ...]:
        """Names of the boundaries in tables: between successive groups "4->5-6", "5-6->7".

        Around the only group of a model "prelude->3-6" ("embedding->3-6" without unlooped layers
        before it), and "3-6->coda" where unlooped layers follow.
        """
        parts = list(self.group_labels)
        if len(parts) == 1:
            (core,) = self.groups
            parts.insert(0, "prelude" if core[0] > 1 else "embedding")
            if core[-1] < self.num_layers:
                parts.append("coda")
        return tuple(boundary_label(left, right) for left, right in pairwise(parts))

    @property
    def draws_noise(self) -> bool:
        """Whether the states of a token depend on the seed of the noise."""
        return bool(self.groups) and ("noise" in self.state_init or self.loop_noise > 0)

    @property
    def effective_depth(self) -> float:
        """Layers applied per token: a looped layer counts `mean_loops` times."""
        looped = sum(len(group) for group in self.groups)
        return self.num_layers - looped + looped * self.mean_loops


# Loop counts at which a depth card has a row, as multiples of the trained loops.
MULTIPLES = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def loop_counts(
    trained: float, multiples: Iterable[float] = MULTIPLES, most: int | None = None
) -> tuple[int, ...]:
    """Whole loop counts next to the multiples of `trained`, at least 1 and at most `most`.

    `trained` itself is one of them.
    """
    counts = {max(1, round(multiple * trained)) for multiple in (1.0, *multiples)}
    if most is not None:
        counts = {count for count in counts if count <= most}
    return tuple(sorted(counts))
