"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, group_names, table


def _caption(config: Config) -> dict[str, Any]:
    return {
        "groups": group_names(config),
        "loops": config.trajectories.loops,
        "dtype": config.trajectories.dtype,
        "draws": config.path_independence.draws,
        "tokens": config.sequences("path_independence") * config.model.context_length,
    }


FIGURES = (
    Figure(
        "path_independence",
        table("path_independence"),
        _caption,
        values=lambda config: {"dtype": config.trajectories.dtype},
        noise=True,
    ),
)
