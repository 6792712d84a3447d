"""Figures and claims of recorded states, from a folder with the tables of extraction, as in the
workflow.

A folder results/mine with `trajectories/`, `paths/` and `drift/iteration_*.parquet`
(`twoscale.recorder.recorder`) gets the tables of the workflow in `tables/`, the figures that can be
drawn of them, and `claims.md`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError, replacing, study_parts
from twoscale.claims import loop_counts, regime
from twoscale.claims import verdicts as claims
from twoscale.claims.bootstrap import with_bounds
from twoscale.claims.evidence import Estimate, Evidence
from twoscale.config import Config, ConfigSlice
from twoscale.dynamics import aggregate, state_paths
from twoscale.figures import style
from twoscale.figures.catalogue import figures
from twoscale.jobs import command
from twoscale.jobs.table_job import StudyJob
from twoscale.recorder.recorded import facts_path, table_path
from twoscale.report.claims import claims_markdown
from twoscale.report.render import estimated, interval

DRAWN = ("fig1", "fig2", "fig3", "fig5", "path_types", "scaling")
WRITTEN = (
    "loop_metrics",
    "loop_sequences",
    "drift",
    "drift_sequences",
    "path_types",
    "path_metrics",
    "scaling",
    "state_paths",
)
SEED = 0  # of the bootstraps
TEXT = "recorded sequences"  # name of a text without one


def draw_run(folder: str | Path, text: str = TEXT, reading: str = "state") -> list[Path]:
    """Aggregate the tables of a recorded run, draw its figures and judge the claims about geometry.

    The name of the folder, such as results/mine, is the name of the run. `text` is the name of the
    text, `reading` that of the steps of Fig. 3 and 5: "state" or "direction". Returns the files of
    the figures and of the claims. Fig. 1 needs states.safetensors, Fig. 2 two groups that run one
    after the other, scaling a recorder with `decode`.
    """
    folder = Path(folder)
    if not _files(folder, "trajectories"):
        raise InputError(
            f"{folder}: found no trajectories/iteration_*.parquet, expected the tables of a"
            f" recorder."
        )
    frames = _aggregate(folder)
    config = Config.model_validate({"figures": {"reading": reading}})
    return [*_figures(folder, text, frames, config), _claims(folder, text, frames)]


def _files(folder: Path, name: str) -> list[Path]:
    return sorted((folder / name).glob("iteration_*.parquet"))


def _aggregate(folder: Path) -> dict[str, pd.DataFrame]:
    """Write the tables of statistics with the jobs of the workflow, and return them by name."""
    config = ConfigSlice({"run": folder.name, "seed": SEED})
    trajectories, drift, paths, scaling = (
        _files(folder, n) for n in ("trajectories", "drift", "paths", "scaling")
    )
    jobs = [
        (aggregate.metrics, {"trajectories": trajectories, "token_drift": drift}),
        (
            state_paths.project_states,
            {"states": [path for path in [folder / "states.safetensors"] if path.exists()]},
        ),
    ]
    jobs += [(aggregate.count_path_types, {"paths": paths})]
    jobs += [(loop_counts.aggregate_scaling, {"quality": scaling})]
    outputs = {name: [folder / "tables" / f"{name}.parquet"] for name in WRITTEN}
    for run, files in jobs:
        if all(files.values()):
            run(StudyJob(config, files | outputs))
    return {name: tables.read(name, path) for name, (path,) in outputs.items() if path.exists()}


def _figures(
    folder: Path, text: str, frames: dict[str, pd.DataFrame], config: Config
) -> Iterator[Path]:
    """Draw the figures whose files exist and have rows."""
    loops = frames["loop_metrics"].groupby("group")["k"].max()
    context = style.FigureContext(
        folder.name, text, int(loops.max()), fewest_loops=int(loops.min())
    )
    for figure in (figure for figure in figures() if figure.name in DRAWN):
        inputs = {name: [folder / file] for name, file in figure.inputs.items()}
        if not all(path.exists() for paths in inputs.values() for path in paths):
            continue
        if any(frames[name].empty for name in inputs if name in frames):
            continue
        values = figure.values(config) | ({"mean_loops": None} if figure.name == "scaling" else {})
        path = folder / f"{figure.name}.pdf"
        style.save(
            style.draw_files(
                command.function(figure.function), inputs, [folder.name], **values, context=context
            ),
            path,
        )
        yield path


def _claims(folder: Path, text: str, frames: dict[str, pd.DataFrame]) -> Path:
    """Write the verdicts on the claims about geometry, as a table and as a page."""
    exits = ("exit_quality", "exit_loops", "exit_latency", "check_cost")
    quality, loops, latency, checks = (
        pd.DataFrame(columns=list(tables.columns(name))) for name in exits
    )
    measured = frames["loop_sequences"], frames["drift_sequences"]
    evidence = Evidence(*measured, quality, loops, latency, checks, max_loops=0, seed=SEED)
    verdicts = claims.verdicts(evidence, claims.GEOMETRY)
    tables.write(
        "claims", claims.table(verdicts, folder.name), folder / "tables" / "claims.parquet"
    )
    tables.write("regime", regime.table(evidence.loops), folder / "tables" / "regime.parquet")
    page = folder / "claims.md"
    with replacing(page) as temporary:
        temporary.write_text(
            claims_markdown(verdicts, folder.name, text, evidence, recorded=True), encoding="utf-8"
        )
    return page


# nats per token above the lowest loss up to which a loop count belongs to the plateau
TOLERANCE = 0.01


def write_card(
    folder: str | Path,
    text: str = TEXT,
    unlooped: str | Path | None = None,
    iteration: int | None = None,
    tolerance: float = TOLERANCE,
) -> list[Path]:
    """Write depth-card.md, its picture and its tables into the folder of a recorded run.

    The card is that of `snakemake results/depth-card.md`. The recording needs `decode`, and more
    loop steps than `trained_loops` for loop counts beyond training.

    Args:
        folder: Folder of the run, such as results/mine; its name is the name of the run.
        text: Name of the text.
        unlooped: Folder of a recording of a model without loops on the same sequences, at its
            trained loops.
        iteration: Training iteration of the weights; by default the last one that was recorded with
            `decode`.
        tolerance: Nats per token of the plateau.

    Raises:
        InputError: The folder has no recording with `decode`, or `unlooped` one of other sequences.
    """
    if (depth := study_parts("draw").get("depth")) is None:
        raise InputError(
            "study depth: not found in twoscale/studies, but required for a depth card."
        )
    folder = Path(folder)
    iteration = _last_iteration(folder) if iteration is None else iteration
    quality, facts = _quality(folder, iteration), _facts(folder, iteration)
    trajectories = table_path(folder, "trajectories", iteration)
    states = aggregate.summarise(
        "loop_sequences", [trajectories], folder.name
    )  # as in the claims of the run
    tables.check_finite("loop_sequences", states, trajectories)
    twin = None if unlooped is None else _unlooped(Path(unlooped), facts)
    card = loop_counts.summarise_card(quality, states, facts["trained_loops"], SEED)
    findings = loop_counts.findings(quality, states, facts["trained_loops"], tolerance, twin, SEED)
    written = {
        name: folder / "tables" / f"{name}.parquet" for name in ("depth_card", "depth_findings")
    }
    picture, target = folder / "depth_card.svg", folder / "depth-card.md"
    further = {"gains": _gains(folder, iteration), "spectrum": _spectrum(folder, iteration)}
    modules = ", ".join(f"{group} ({name})" for group, name in facts["modules"].items())
    sizes = f"{facts['tokens']} tokens in {facts['sequences']} sequences"
    identity = {
        "model": f"{facts['model']}; looped: {modules}",
        "trained loops": facts["trained_loops"],
        "text": f"{text}, {sizes}, SHA-256 {facts['text_sha256'][:12]}",
        "precision": facts["precision"],
        "checkpoint": iteration,
    }
    # before the first file is written
    content = depth.card_page(card, findings, folder.name, identity, picture.name, **further)
    for (name, path), frame in zip(written.items(), (card, findings), strict=True):
        tables.write(name, frame.assign(run=folder.name)[list(tables.columns(name))], path)
    context = style.FigureContext(folder.name, text, int(quality["loops"].max()))
    style.save(depth.draw_depth_card(card, findings, context=context), picture)
    with replacing(target) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return [target, picture, *written.values()]


def _last_iteration(folder: Path) -> int:
    files = sorted((folder / "depth").glob("iteration_*.parquet"))
    if not files:
        raise InputError(
            f"{folder}: found no depth/iteration_*.parquet, expected a recording with decode."
        )
    return int(files[-1].stem.removeprefix("iteration_"))


def _facts(folder: Path, iteration: int) -> dict[str, Any]:
    return json.loads(facts_path(folder, iteration).read_text(encoding="utf-8"))


def _quality(folder: Path, iteration: int) -> pd.DataFrame:
    return tables.read("depth_quality", table_path(folder, "depth_quality", iteration))


def _unlooped(folder: Path, facts: dict[str, Any]) -> pd.DataFrame:
    """Rows of "depth_quality" of a model without loops, at its trained loops."""
    iteration = _last_iteration(folder)
    other = _facts(folder, iteration)
    if other["text_sha256"] != facts["text_sha256"]:
        raise InputError(
            f"{folder}: found other recorded tokens, expected those of the looped model."
        )
    quality = _quality(folder, iteration)
    return quality[quality["loops"] == other["trained_loops"]]


def _gains(folder: Path, iteration: int) -> list[tuple[str, ...]]:
    """Cells of the table of exits, and the table "recorded_gains"; empty without exits.

    The gain of a criterion is the loss of fixed loops at its mean evaluations minus its own, on the
    same documents. At a mean between two whole counts, fixed loops are these two for shares of the
    tokens.
    """
    path, point = table_path(folder, "recorded_exits", iteration), ["criterion", "threshold"]
    if not path.exists():
        return []
    rows = tables.read("recorded_exits", path)
    is_fixed = rows["criterion"] == "fixed"
    fixed = rows[is_fixed].pivot(index="sequence", columns="threshold", values="ce")
    found = []
    for _, own in rows[~is_fixed].groupby(point, sort=False):
        mean = np.average(own["evaluations"], weights=own["tokens"])
        low = int(np.clip(np.floor(mean), 1, fixed.columns.max()))
        high = min(low + 1, int(fixed.columns.max()))
        at_mean = fixed[low] + (mean - low) * (fixed[high] - fixed[low])
        found.append(own.assign(gain=own["sequence"].map(at_mean) - own["ce"]))
    joined, columns = pd.concat(found), dict[str, Any]()
    for name in ("evaluations", "ce", "gain"):
        columns |= with_bounds(joined, point, name, name, SEED)
    gains = (
        pd.DataFrame(columns)
        .reset_index()
        .assign(iteration=iteration)[list(tables.columns("recorded_gains"))]
    )
    tables.write("recorded_gains", gains, folder / "tables" / "recorded_gains.parquet")
    cells: list[tuple[str, ...]] = []
    for row in gains.itertuples():
        gain = Estimate(row.gain, row.gain_low, row.gain_high)
        shown = row.criterion, f"{row.threshold:.3g}", f"{row.evaluations:.2f}", f"{row.ce:.3f}"
        cells.append((*shown, estimated(gain), interval(gain)))
    return cells


def _spectrum(folder: Path, iteration: int) -> list[tuple[object, ...]]:
    """Cells of the table of the spectrum: median and range of the radius over sequences; empty
    without one.
    """
    path = table_path(folder, "recorded_spectrum", iteration)
    if not path.exists():
        return []
    rows = tables.read("recorded_spectrum", path)
    cells = []
    for point, own in rows.groupby(["group", "reading", "k"], sort=False):
        radius, residual = own["radius"], f"{(own['error'] / own['radius']).max():.1g}"
        spread = f"{radius.min():.4f} … {radius.max():.4f}"
        cells.append((*point, f"{radius.median():.4f}", spread, residual, len(own)))
    return cells
