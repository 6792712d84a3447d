"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, all_seeds, boundary_names, reference_state, table, trajectory_values


def _caption(config: Config) -> dict[str, Any]:
    values = config.variants
    return trajectory_values(config) | {
        "runs": len(values.sandwich) * len(values.adapter_init) * len(values.state_init),
        "seeds": all_seeds(config),
        "boundaries": boundary_names(config),
        "reference_state": config.figures.dlr_reference_state,
        "iterations": config.train.iterations,
        "training_tokens": config.train.iterations * config.train.batch_size * config.model.context_length,
        "held_out_loops": config.train.held_out_loops,
        "num_layers": config.model.num_layers,
        "hidden_size": config.model.hidden_size,
    }


FIGURES = (
    Figure(
        "variants",
        table("loop_metrics", "drift", "training"),
        _caption,
        values=reference_state,
        target="variants",
        training=True,
        study="variants",
    ),
)
