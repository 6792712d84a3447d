"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, after_training, group_names, table


def _caption(config: Config) -> dict[str, Any]:
    named = ("steps", "window", "slowed_position", "slow_factor", "dtype")
    return {name: getattr(config.spectrum, name) for name in named} | {
        "groups": group_names(config),
        "after": after_training(config),
        "loops": config.trajectories.loops,
        "exact_tokens": config.spectrum.exact_sequences(config) * config.model.context_length,
        "method": "dense blocks" if config.model.hidden_size <= config.spectrum.dense_size else "Arnoldi's method",
    }


FIGURES = (
    Figure(
        "spectrum",
        table("token_spectrum", "spectrum"),
        _caption,
        loops=lambda config: config.spectrum.steps,
        title="Spectrum of a loop",
        claims=(3, 4, 5),
    ),
)
