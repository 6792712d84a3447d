"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, group_names, table


def _caption(config: Config) -> dict[str, Any]:
    return {
        "groups": group_names(config),
        "batch_tokens": config.train.batch_size * config.model.context_length,
        "held_out_tokens": config.train.held_out_sequences * config.model.context_length,
        "held_out_loops": config.train.held_out_loops,
        "near_duplicate_tokens": config.data.near_duplicate_tokens,
        "mean_loops": f"{config.model.mean_loops:g}",
        "grad_clip": f"{config.train.grad_clip:g}",
    }


FIGURES = (
    Figure(
        "training",
        table("training", "training_loops"),
        _caption,
        loops=lambda config: config.train.held_out_loops,
        values=lambda config: {"mean_loops": config.model.mean_loops, "grad_clip": config.train.grad_clip},
        groups=0,
        training=True,
        sentence="twoscale.studies.training.compare.sentence",
    ),
)
