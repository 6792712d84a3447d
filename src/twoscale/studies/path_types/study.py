"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.identity import plain
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, table, trajectory_values


def _caption(config: Config) -> dict[str, Any]:
    return trajectory_values(config) | {"path_types": plain(config.path_types)}


FIGURES = (Figure("path_types", table("path_types", "path_metrics"), _caption, claims=(13,)),)
