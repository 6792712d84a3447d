"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, all_seeds, table


def _caption(config: Config) -> dict[str, Any]:
    return {
        "seeds": all_seeds(config),
        "loops": config.trajectories.loops,
    }


FIGURES = (Figure("seeds", table("seeds"), _caption, target="seeds", title="Seeds: verdicts and spread", seeds=True),)
