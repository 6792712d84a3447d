"""Values that jobs compute from the section `model` of a config: the noise, sizes of a model, names of groups.

The fingerprint of the code covers this module for every job with a model. Everything else that a job needs of the
config reaches it as a value in its params. Nothing here needs pydantic, so a released model contains this module as it
is (`twoscale.export`).
"""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

NOISE_STD = math.sqrt(2 / 5)  # of the initial state, before truncation at three deviations ([G])


def group_label(group: tuple[int, ...]) -> str:
    """Name of a looped group in tables: "4" or "5-6"."""
    return str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"


def boundary_label(left: str, right: str) -> str:
    """Name of the boundary between two successive groups in tables: "4->5-6"."""
    return f"{left}->{right}"


class ModelSizes:
    """Sizes of a model that follow from the keys of its config, which a subclass has as attributes."""

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
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def mlp_width(self) -> int:
        """Hidden size of the MLP."""
        return self.mlp_size or 4 * self.hidden_size

    def is_looped(self, number: int) -> bool:
        """Whether layer `number` is in a looped group."""
        return any(number in group for group in self.groups)

    def kv_heads_of(self, number: int) -> int:
        """Heads of keys and values of layer `number`."""
        return (self.is_looped(number) and self.looped_kv_heads) or self.kv_heads

    def mlp_width_of(self, number: int) -> int:
        """Hidden size of the MLP of layer `number`."""
        return (self.is_looped(number) and self.looped_mlp_size) or self.mlp_width

    @property
    def rotated_channels(self) -> int:
        """Channels of a head that are rotated."""
        return self.rotary_channels or self.head_dim

    @property
    def embedding_factor(self) -> float:
        """Factor of the embedding."""
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
        return tuple(group_label(group) for group in self.groups)

    @property
    def boundary_labels(self) -> tuple[str, ...]:
        """Names of the boundaries in tables: between successive groups "4->5-6", "5-6->7".

        Around the only group of a model "prelude->3-6" ("embedding->3-6" without unlooped layers before it), and
        "3-6->coda" where unlooped layers follow.
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
        """Layers applied per token at the mean loop count: a looped layer counts `mean_loops` times."""
        looped = sum(len(group) for group in self.groups)
        return self.num_layers - looped + looped * self.mean_loops
