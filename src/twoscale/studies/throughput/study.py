"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, after_training, exit_max_loops, table


def _caption(config: Config) -> dict[str, Any]:
    prompt, tokens = config.throughput.lengths(config)
    return {
        "after": after_training(config),
        "max_loops": config.exits.max_loops,
        "dtype": config.exits.dtype,
        "device": config.compute.device,
        "sequences": ", ".join(map(str, config.throughput.sequences)),
        "prompt": prompt,
        "tokens": tokens,
        "repeats": config.throughput.repeats,
        "threads": config.throughput.cpu_threads,
    }


FIGURES = (
    Figure(
        "throughput",
        table("throughput"),
        _caption,
        loops=exit_max_loops,
        title="Throughput: sequences decoded together",
    ),
)
