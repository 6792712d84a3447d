"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, table


def _caption(config: Config) -> dict[str, Any]:
    return {
        "held_out_loops": config.train.held_out_loops,
        "tokens": config.sequences("scaling") * config.model.context_length,
        "mean_loops": f"{config.model.mean_loops + 1:g}",
        "dtype": config.scaling.dtype,
    }


FIGURES = (
    Figure(
        "baselines",
        table("baselines"),
        _caption,
        loops=lambda config: config.train.held_out_loops,
        target="baselines",
        title="Baselines: what the loops buy",
        training=True,
    ),
)
