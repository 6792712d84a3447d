"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, after_training, exit_max_loops, exit_values, group_names, table


def _pareto(config: Config) -> dict[str, Any]:
    return exit_values(config) | {
        "after": after_training(config),
        "loops": ", ".join(map(str, config.loop_grid)),
        "latency_tokens": config.pareto.latency_tokens,
        "latency_repeats": config.pareto.latency_repeats,
        "quality_tokens": config.sequences("pareto", "quality_tokens") * config.model.context_length,
    }


def _arena(config: Config) -> dict[str, Any]:
    said = ("after", "max_loops", "dtype", "readout", "draws", "quality_tokens")
    return {name: value for name, value in _pareto(config).items() if name in said} | {
        "groups": group_names(config),
        "oracle_tokens": config.sequences("oracle") * config.model.context_length,
    }


FIGURES = (
    Figure(
        "pareto",
        table(
            "uniform_loops",
            exit_latency="pareto_latency",
            exit_quality="pareto_quality",
            exit_loops="pareto_loops",
            exit_controls="pareto_controls",
        ),
        _pareto,
        loops=exit_max_loops,
        title="Pareto: quality against latency",
        claims=(10,),
    ),
    Figure("arena", table("arena"), _arena, loops=exit_max_loops, title="Arena: what the exits are worth"),
)
