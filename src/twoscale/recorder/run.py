"""Figures and claims of recorded states: what the workflow does with the tables of extraction, for a folder of them.

A folder results/mine with `trajectories/`, `paths/` and `drift/iteration_*.parquet` (`twoscale.recorder.recorder`) gets
the tables of the workflow in `tables/`, the figures that can be drawn of them, and `claims.md`.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from twoscale import tables
from twoscale.analysis import aggregate, claims, claims_page
from twoscale.analysis.evidence import Evidence
from twoscale.analysis.state_paths import read_states, state_paths
from twoscale.config import Config
from twoscale.discovery import study_parts
from twoscale.errors import InputError
from twoscale.figures import drawing, style
from twoscale.figures.catalogue import figures
from twoscale.files import replacing

DRAWN = ("fig1", "fig2", "fig3", "fig5", "path_types", "scaling")
SEED = 0  # of the bootstraps


def draw_run(folder: str | Path, text: str = "recorded") -> list[Path]:
    """Aggregate the tables of a recorded run, draw its figures and judge the claims about geometry.

    Args:
        folder: Folder of the run, such as results/mine; its name is the name of the run.
        text: Name of the text, for the foot of the figures.

    Returns:
        The files of the figures and of the claims. Fig. 1 needs states.safetensors, Fig. 2 two groups that run one
        after the other, scaling a recorder with `decode`.

    Raises:
        InputError: The folder has no table, or one of other columns.
    """
    folder = Path(folder)
    if not _files(folder, "trajectories"):
        raise InputError(f"{folder}: found no trajectories/iteration_*.parquet, expected the tables of a recorder.")
    frames = _aggregate(folder)
    return [*_figures(folder, text, frames), _claims(folder, text, frames)]


def _files(folder: Path, name: str) -> list[Path]:
    return sorted((folder / name).glob("iteration_*.parquet"))


def _aggregate(folder: Path) -> dict[str, pd.DataFrame]:
    """Write the tables of statistics, and return them by name."""
    run, trajectories, drift, paths = folder.name, *(_files(folder, n) for n in ("trajectories", "drift", "paths"))
    frames = {
        "loop_metrics": aggregate.loop_metrics(trajectories, run),
        "loop_sequences": aggregate.loop_sequences(trajectories, run),
        "drift": aggregate.drift(drift, run),
        "drift_sequences": aggregate.drift_sequences(drift, run),
    }
    studies = study_parts("compare")
    if "path_types" in studies:
        frames["path_types"] = studies["path_types"].path_types(paths, run)
        frames["path_metrics"] = aggregate.statistics(paths, run, "token_paths", "path_metrics")
    if "scaling" in studies and (quality := _files(folder, "scaling")):
        frames["scaling"] = studies["scaling"].summarise_scaling(quality, run, SEED)
    if (states := folder / "states.safetensors").exists():
        frames["state_paths"] = state_paths(read_states(states), run)
    for name, frame in frames.items():
        tables.write(name, frame, folder / "tables" / f"{name}.parquet")
    return frames


def _figures(folder: Path, text: str, frames: dict[str, pd.DataFrame]) -> Iterator[Path]:
    """Draw the figures whose files exist and have rows."""
    loops = frames["loop_metrics"].groupby("group")["k"].max()
    context = style.FigureContext(folder.name, text, int(loops.max()), fewest_loops=int(loops.min()))
    for figure in (figure for figure in figures() if figure.name in DRAWN):
        inputs = {name: [folder / file] for name, file in figure.inputs.items()}
        if not all(path.exists() for paths in inputs.values() for path in paths):
            continue
        if any(frames[name].empty for name in inputs if name in frames):
            continue
        values = figure.values(Config()) | ({"mean_loops": None} if figure.name == "scaling" else {})
        path = folder / f"{figure.name}.pdf"
        style.save(drawing.draw(figure.module, inputs, [folder.name], **values, context=context), path)
        yield path


def _claims(folder: Path, text: str, frames: dict[str, pd.DataFrame]) -> Path:
    """Write the verdicts on the claims about geometry, as a table and as a page."""
    exits = ("exit_quality", "exit_loops", "exit_latency", "check_cost")
    quality, loops, latency, checks = (pd.DataFrame(columns=list(tables.columns(name))) for name in exits)
    measured = frames["loop_sequences"], frames["drift_sequences"]
    evidence = Evidence(*measured, quality, loops, latency, checks, max_loops=0, seed=SEED)
    verdicts = claims.verdicts(evidence, claims.GEOMETRY)
    tables.write("claims", claims.table(verdicts, folder.name), folder / "tables" / "claims.parquet")
    page = folder / "claims.md"
    with replacing(page) as temporary:
        temporary.write_text(claims_page.page(verdicts, folder.name, text, evidence), encoding="utf-8")
    return page
