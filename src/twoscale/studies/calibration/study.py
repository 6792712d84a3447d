"""Figures and jobs of the study."""

from typing import Any

from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, after_training, exit_max_loops, table


def _caption(config: Config) -> dict[str, Any]:
    shares = (config.calibration.search_share, config.calibration.report_share)
    search, report = (f"{100 * share:g}" for share in shares)
    return {
        "after": after_training(config),
        "max_loops": config.exits.max_loops,
        "dtype": config.exits.dtype,
        "readout": config.exits.readout.replace("_", " "),
        "tokens": config.calibration.sequences(config) * config.model.context_length,
        "search": search,
        "report": report,
        "path_end": f"{config.calibration.path_end:g}",
        "probability": f"{1 - config.promises.delta:g}",
        "clip": f"{config.promises.clip:g}",
        "unit": config.promises.unit,
        "test": {"betting": "betting", "hoeffding_bentkus": "Hoeffding's and Bentkus' bounds"}[config.promises.test],
    }


FIGURES = (
    Figure(
        "calibration",
        table("calibration"),
        _caption,
        loops=exit_max_loops,
        title="Calibration: evaluations saved at a promised quality",
    ),
)
