"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, seed_list, table, trajectory_values


def _caption(config: Config) -> dict[str, Any]:
    return trajectory_values(config) | {
        "seeds": seed_list(config),
        "iterations": config.train.iterations,
        "training_tokens": config.train.iterations * config.train.batch_size * config.model.context_length,
        "held_out_loops": config.train.held_out_loops,
        "num_layers": config.model.num_layers,
        "hidden_size": config.model.hidden_size,
    }


FIGURES = (
    Figure(
        "starts",
        table("starts"),
        _caption,
        target="starts",
        title="Starts of the projection",
        claims=(4,),
        training=True,
        study="starts",
        compared=True,
        projection=True,
    ),
)
