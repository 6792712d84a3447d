"""A folder of a published model as a layer of the config: its architecture and its published defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twoscale.config import merge
from twoscale.model.published.family import Defaults
from twoscale.model.published.folder import PublishedFolder

# Thresholds around the published one, so that a curve shows where a gate starts to cost quality.
GATE_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def folder_layer(folder: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The layer between a preset and the user's keys for the model in `folder`.

    Args:
        folder: Folder in the layout of the hub.
        values: All layers merged; the layer keeps what they allow of context, timed tokens, loop grid and path window.

    Raises InputError for a folder without a supported model.
    """
    source = PublishedFolder(Path(folder))
    layer = source.layer
    return merge(layer, measurements(source.defaults, source.readout, values))


def measurements(defaults: Defaults, readout: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Loops, exit criteria and thresholds as published, and the keys that have to fit them.

    Args:
        defaults: How the model was published to be run.
        readout: `exits.readout` as published.
        values: All layers merged.
    """
    loops, window = max(2, defaults.loops), values["path_types"]
    scaling = {count for count in values["scaling"]["loops"] if count <= 2 * loops}
    context = min(values["model"]["context_length"], defaults.max_context_length)
    return {
        "model": {"context_length": context},
        "trajectories": {"loops": loops},
        "path_types": {name: min(window[name], loops) for name in ("window", "max_period")},
        "exits": {
            "max_loops": loops,
            "readout": readout,
            "latency_tokens": min(values["exits"]["latency_tokens"], context),
            "criteria": _criteria(loops, defaults),
        },
        "scaling": {"loops": sorted(scaling | {defaults.loops})},
    }


def _criteria(loops: int, defaults: Defaults) -> dict[str, Any]:
    thresholds = {name: list(published) for name, published in defaults.criteria.items()}
    fixed = sorted({defaults.loops, loops})  # two where one is the published number
    if "exit_gate" in thresholds:
        thresholds["exit_gate"] = sorted({*GATE_GRID, *thresholds["exit_gate"]})
    return {name: {"thresholds": values} for name, values in ({"fixed": fixed} | thresholds).items()}
