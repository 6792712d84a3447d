"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, table


def _caption(config: Config) -> dict[str, Any]:
    return {
        "loops": ", ".join(map(str, config.scaling.loops)),
        "tokens": config.sequences("scaling") * config.model.context_length,
        "near_duplicate_tokens": config.data.near_duplicate_tokens,
        "mean_loops": f"{config.model.mean_loops:g}",
        "dtype": config.scaling.dtype,
    }


FIGURES = (
    Figure(
        "scaling",
        table("scaling"),
        _caption,
        title="Quality against loops",
        loops=lambda config: max(config.scaling.loops),
        values=lambda config: {"mean_loops": config.model.mean_loops},
    ),
)
