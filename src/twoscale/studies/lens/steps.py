"""The loop steps that the lens decodes, from a config or a slice with the sections `model` and `lens`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twoscale.config import Config, ConfigSlice


def steps_of(config: "Config | ConfigSlice") -> tuple[int, ...]:
    """0, the powers of two and the numbers half way between them, the mean of training and the last one; ascending."""
    last = max(config.model.typical_loops, round(config.lens.max_multiple * config.model.mean_loops))
    grid = {count << shift for count in (2, 3) for shift in range(last.bit_length())}
    return tuple(sorted({0, 1, config.model.typical_loops, last, *(k for k in grid if k < last)}))


def other_loops(config: "Config | ConfigSlice") -> int:
    """Loop steps of the groups before and after the one that the lens decodes."""
    return config.lens.other_loops or config.model.typical_loops
