"""Figures and claims of recorded states, from a folder with the tables of extraction, as in the workflow.

A folder results/mine with `trajectories/`, `paths/` and `drift/iteration_*.parquet` (`twoscale.recorder.recorder`) gets
the tables of the workflow in `tables/`, the figures that can be drawn of them, and `claims.md`.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from twoscale import tables
from twoscale.base import InputError, replacing, study_parts
from twoscale.claims import regime
from twoscale.claims import verdicts as claims
from twoscale.claims.evidence import Evidence
from twoscale.config import Config, ConfigSlice
from twoscale.dynamics import aggregate, state_paths
from twoscale.figures import style
from twoscale.figures.catalogue import figures
from twoscale.jobs import command
from twoscale.jobs.rows import StudyJob
from twoscale.report.claims_page import claims_markdown

DRAWN = ("fig1", "fig2", "fig3", "fig5", "path_types", "scaling")
WRITTEN = "loop_metrics loop_sequences drift drift_sequences path_types path_metrics scaling state_paths".split()
SEED = 0  # of the bootstraps
TEXT = "recorded sequences"  # name of a text without one


def draw_run(folder: str | Path, text: str = TEXT, reading: str = "state") -> list[Path]:
    """Aggregate the tables of a recorded run, draw its figures and judge the claims about geometry.

    The name of the folder, such as results/mine, is the name of the run. `text` is the name of the text, `reading` that
    of the steps of Fig. 3 and 5: "state" or "direction". Returns the files of the figures and of the claims. Fig. 1
    needs states.safetensors, Fig. 2 two groups that run one after the other, scaling a recorder with `decode`.
    """
    folder = Path(folder)
    if not _files(folder, "trajectories"):
        raise InputError(f"{folder}: found no trajectories/iteration_*.parquet, expected the tables of a recorder.")
    frames = _aggregate(folder)
    config = Config.model_validate({"figures": {"reading": reading}})
    return [*_figures(folder, text, frames, config), _claims(folder, text, frames)]


def _files(folder: Path, name: str) -> list[Path]:
    return sorted((folder / name).glob("iteration_*.parquet"))


def _aggregate(folder: Path) -> dict[str, pd.DataFrame]:
    """Write the tables of statistics with the jobs of the workflow, and return them by name."""
    config = ConfigSlice({"run": folder.name, "seed": SEED})
    trajectories, drift, paths, scaling = (_files(folder, n) for n in ("trajectories", "drift", "paths", "scaling"))
    jobs = [
        (aggregate.metrics, {"trajectories": trajectories, "token_drift": drift}),
        (state_paths.project_states, {"states": [path for path in [folder / "states.safetensors"] if path.exists()]}),
    ]
    jobs += [(part.run_types, {"paths": paths}) for name, part in study_parts("draw").items() if name == "paths"]
    jobs += [(part.run_scaling, {"quality": scaling}) for name, part in study_parts("draw").items() if name == "depth"]
    outputs = {name: [folder / "tables" / f"{name}.parquet"] for name in WRITTEN}
    for run, files in jobs:
        if all(files.values()):
            run(StudyJob(config, files | outputs))
    return {name: tables.read(name, path) for name, (path,) in outputs.items() if path.exists()}


def _figures(folder: Path, text: str, frames: dict[str, pd.DataFrame], config: Config) -> Iterator[Path]:
    """Draw the figures whose files exist and have rows."""
    loops = frames["loop_metrics"].groupby("group")["k"].max()
    context = style.FigureContext(folder.name, text, int(loops.max()), fewest_loops=int(loops.min()))
    for figure in (figure for figure in figures() if figure.name in DRAWN):
        inputs = {name: [folder / file] for name, file in figure.inputs.items()}
        if not all(path.exists() for paths in inputs.values() for path in paths):
            continue
        if any(frames[name].empty for name in inputs if name in frames):
            continue
        values = figure.values(config) | ({"mean_loops": None} if figure.name == "scaling" else {})
        path = folder / f"{figure.name}.pdf"
        style.save(
            style.draw_files(command.function(figure.function), inputs, [folder.name], **values, context=context), path
        )
        yield path


def _claims(folder: Path, text: str, frames: dict[str, pd.DataFrame]) -> Path:
    """Write the verdicts on the claims about geometry, as a table and as a page."""
    exits = ("exit_quality", "exit_loops", "exit_latency", "check_cost")
    quality, loops, latency, checks = (pd.DataFrame(columns=list(tables.columns(name))) for name in exits)
    measured = frames["loop_sequences"], frames["drift_sequences"]
    evidence = Evidence(*measured, quality, loops, latency, checks, max_loops=0, seed=SEED)
    verdicts = claims.verdicts(evidence, claims.GEOMETRY)
    tables.write("claims", claims.table(verdicts, folder.name), folder / "tables" / "claims.parquet")
    tables.write("regime", regime.table(evidence.loops), folder / "tables" / "regime.parquet")
    page = folder / "claims.md"
    with replacing(page) as temporary:
        temporary.write_text(claims_markdown(verdicts, folder.name, text, evidence, recorded=True), encoding="utf-8")
    return page
