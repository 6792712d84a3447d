"""Loop counts of the card, from a config or a slice with the sections `model` and `depth_card`."""

from typing import TYPE_CHECKING

from twoscale.config.loop_counts import loop_counts

if TYPE_CHECKING:
    from twoscale.config import Config, ConfigSlice

STATE_MEASURES = ("state_norm", "step_norm", "cosine", "direction_step_norm")  # columns of "depth_states"


def counts_of(config: "Config | ConfigSlice") -> tuple[int, ...]:
    """Loop counts, ascending; 1 for a model without groups, which has no other."""
    return loop_counts(config.model.mean_loops, config.depth_card.multiples) if config.model.groups else (1,)


def trained_loops(config: "Config | ConfigSlice") -> int:
    """The row of the trained loops; 1 for a model without groups."""
    return config.model.typical_loops if config.model.groups else 1
