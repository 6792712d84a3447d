"""Figures and claims of recorded states, from a folder with the tables of extraction.

A folder results/mine with `trajectories/`, `paths/` and `drift/iteration_*.parquet`
(`twoscale.recorder.recorder`) gets the tables of the workflow in `tables/`, the figures that can be
drawn of them, and `claims.md`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from twoscale import tables
from twoscale.base import InputError, replacing, study_parts
from twoscale.claims import loop_counts
from twoscale.claims import verdicts as claims
from twoscale.claims.evidence import Evidence
from twoscale.config import Config, ConfigSlice
from twoscale.dynamics import aggregate, state_paths
from twoscale.dynamics.run_tables import last_recorded, read_facts, table_files, table_path
from twoscale.figures import style
from twoscale.figures.catalogue import figures
from twoscale.jobs import command
from twoscale.jobs.table_job import TableJob
from twoscale.replay import TOLERANCE, hub
from twoscale.replay.check import Found, measure
from twoscale.replay.run_tables import read_recorded
from twoscale.report.claims import claims_markdown
from twoscale.report.loops import LoopTables, loops_page

DRAWN = ("fig1", "fig2", "fig3", "fig5", "path_types", "scaling")
SEED = 0  # of the bootstraps
TEXT = "recorded sequences"  # name of a text without one


def draw_run(
    folder: str | Path, text: str = TEXT, reading: str = "state", html: bool = False
) -> list[Path]:
    """Aggregate the tables of a recorded run, draw its figures and judge the claims about geometry.

    The name of the folder, such as results/mine, is the name of the run. `text` is the name of the
    text, `reading` that of the steps of Fig. 3 and 5: "state" or "direction". Returns the files of
    the figures and of the claims, and with `html` of loops.html. Fig. 1 and loops.html need
    states.safetensors, Fig. 2 two groups that run one after the other, scaling a recorder with
    `decode`.
    """
    folder = Path(folder)
    if not table_files(folder, "trajectories"):
        raise InputError(
            f"{folder}: found no trajectories/iteration_*.parquet, expected the tables of a"
            " recorder."
        )
    frames = _aggregate(folder)
    page = [_write_text(folder / "loops.html", _loops_page(folder, text, frames))] if html else []
    return [*page, *_draw(folder, text, frames, reading), _judge(folder, text, frames)]


def _loops_page(folder: Path, text: str, frames: dict[str, pd.DataFrame]) -> str:
    """The page of the first recorded sequence."""
    if "state_paths" not in frames:
        raise InputError(
            f"{folder}: found no states.safetensors, expected groups with the same number of"
            " channels for loops.html."
        )
    iteration = int(frames["state_paths"]["iteration"].iloc[0])
    found = read_loop_tables(folder, frames["state_paths"], iteration)
    return loops_page(found, folder.name, text, Config().figures.loop_tokens)


def read_loop_tables(folder: Path, state_paths: pd.DataFrame, iteration: int) -> LoopTables:
    """The tables of the first recorded sequence; empty ones of predictions without `decode`."""
    files = {table: table_path(folder, table, iteration) for table in ("loop_tokens", "loop_exits")}
    predictions = {
        table: tables.read(table, path)
        if path.exists()
        else pd.DataFrame(columns=list(tables.columns(table)))
        for table, path in files.items()
    }
    trajectories = table_path(folder, "trajectories", iteration)
    rows = tables.read("trajectories", trajectories, sequence=0)
    return LoopTables(rows, state_paths, **predictions)


def _aggregate(folder: Path) -> dict[str, pd.DataFrame]:
    """Write the tables of statistics with the jobs of the workflow, and return them by name."""
    inputs = {
        "trajectories": table_files(folder, "trajectories"),
        "token_drift": table_files(folder, "token_drift"),
        "paths": table_files(folder, "token_paths"),
        "quality": table_files(folder, "scaling_quality"),
        "states": list(folder.glob("states.safetensors")),
    }
    jobs = [  # function, name of its input, its outputs
        (aggregate.metrics, "trajectories", list(aggregate.TABLES)),
        (aggregate.count_path_types, "paths", ["path_types", "path_metrics"]),
        (loop_counts.aggregate_scaling, "quality", ["scaling"]),
        (state_paths.project_states, "states", ["state_paths"]),
    ]
    config = ConfigSlice({"run": folder.name, "seed": SEED})
    frames: dict[str, pd.DataFrame] = {}
    for run, needed, outputs in jobs:
        # without `decode` there is no quality, and without equal channels there are no states
        if inputs[needed]:
            paths = {name: folder / "tables" / f"{name}.parquet" for name in outputs}
            run(TableJob(config, inputs | {name: [path] for name, path in paths.items()}))
            frames |= {name: tables.read(name, path) for name, path in paths.items()}
    return frames


def _draw(folder: Path, text: str, frames: dict[str, pd.DataFrame], reading: str) -> Iterator[Path]:
    """Draw the figures whose tables have rows.

    `text` is the name of the text, `reading` that of the steps of Fig. 3 and 5.
    """
    config = Config.model_validate({"figures": {"reading": reading}})
    loops = frames["loop_metrics"].groupby("group")["k"].max()
    # groups may run different numbers of loop steps
    most, fewest = int(loops.max()), int(loops.min())
    context = style.FigureContext(folder.name, text, most, fewest_loops=fewest)
    for figure in figures():
        inputs = {name: frames.get(name, pd.DataFrame()) for name in figure.inputs}
        if figure.name not in DRAWN or any(frame.empty for frame in inputs.values()):
            continue
        values = figure.values(config)
        if figure.name == "scaling":
            values["mean_loops"] = None  # only the last group has these loops
        if figure.name == "fig3":
            values["dtype"] = None  # the tables do not have that of the states
        path = folder / f"{figure.name}.pdf"
        draw = command.function(figure.function)
        style.save(draw(**inputs, **values, context=context), path)
        yield path


def _judge(folder: Path, text: str, frames: dict[str, pd.DataFrame]) -> Path:
    """Write the verdicts on the claims about geometry, as a table and as a page."""
    # the claims in GEOMETRY read no table of exits
    of_geometry = {"loops": frames["loop_sequences"], "drift": frames["drift_sequences"]}
    evidence = Evidence.of(of_geometry, max_loops=0, seed=SEED)
    verdicts = claims.verdicts(evidence, claims.GEOMETRY)
    judged = claims.table(verdicts, folder.name)
    tables.write("claims", judged, folder / "tables" / "claims.parquet")
    page = claims_markdown(verdicts, folder.name, text, evidence, recorded=True)
    return _write_text(folder / "claims.md", page)


def _write_text(path: Path, text: str) -> Path:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


# --- the depth card -------------------------------------------------------------------------------


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
    quality, states, facts, findings = _depth(folder, unlooped, iteration, tolerance)
    iteration = int(quality["iteration"].iloc[0])
    card = loop_counts.summarise_card(quality, states, facts["trained_loops"], SEED)
    picture = folder / "depth_card.svg"
    page = depth.card_page(  # before the first file is written
        card,
        findings,
        folder.name,
        identity=_identity(facts, text, iteration),
        picture=picture.name,
        gains=_gains(folder, iteration),
        spectrum=_spectrum(folder, iteration),
    )
    written = []
    for name, frame in (("depth_card", card), ("depth_findings", findings)):
        path = folder / "tables" / f"{name}.parquet"
        tables.write(name, frame.assign(run=folder.name)[list(tables.columns(name))], path)
        written.append(path)
    context = style.FigureContext(folder.name, text, int(quality["loops"].max()))
    style.save(depth.draw_depth_card(card, findings, context=context), picture)
    return [_write_text(folder / "depth-card.md", page), picture, *written]


def hub_card(
    folder: str | Path,
    text: str = TEXT,
    unlooped: str | Path | None = None,
    iteration: int | None = None,
    tolerance: float = TOLERANCE,
) -> str:
    """A section for README.md and metadata for the Hugging Face hub (`twoscale.replay.hub`).

    Full depth are the trained loops. The arguments and errors are those of `write_card`; the
    tolerance also applies to exits.
    """
    folder = Path(folder)
    quality, _, facts, findings = _depth(folder, unlooped, iteration, tolerance)
    run = read_recorded(folder, int(quality["iteration"].iloc[0]))
    return hub.readme(
        folder.name, text, *hub.measured(findings, run, facts["precision"], tolerance)
    )


def _depth(
    folder: Path, unlooped: str | Path | None, iteration: int | None, tolerance: float
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any], pd.DataFrame]:
    """The tables "depth_quality" and "loop_sequences", the description, and "depth_findings"."""
    iteration = last_recorded(folder) if iteration is None else iteration
    quality, facts = _quality(folder, iteration), read_facts(folder, iteration)
    trained = facts["trained_loops"]
    if trained not in quality["loops"].to_numpy():
        most = quality["loops"].max()
        raise InputError(
            f"{folder}: found {most} loop steps in a recording with trained_loops = {trained},"
            f" expected at least {trained}."
        )
    trajectories = table_path(folder, "trajectories", iteration)
    states = aggregate.summarise("loop_sequences", [trajectories], folder.name)
    tables.check_finite("loop_sequences", states, trajectories)
    twin = None if unlooped is None else _unlooped(Path(unlooped), facts)
    findings = loop_counts.findings(quality, states, trained, tolerance, twin, SEED)
    return quality, states, facts, findings


def _identity(facts: dict[str, Any], text: str, iteration: int) -> dict[str, object]:
    """The model and the text of a recording: rows of the page."""
    modules = ", ".join(f"{group} ({name})" for group, name in facts["modules"].items())
    sizes = f"{facts['tokens']} tokens in {facts['sequences']} sequences"
    return {
        "model": f"{facts['model']}; looped: {modules}",
        "trained loops": facts["trained_loops"],
        "text": f"{text}, {sizes}, SHA-256 {facts['text_sha256'][:12]}",
        "precision": facts["precision"],
        "checkpoint": iteration,
    }


def _quality(folder: Path, iteration: int) -> pd.DataFrame:
    return tables.read("depth_quality", table_path(folder, "depth_quality", iteration))


def _unlooped(folder: Path, facts: dict[str, Any]) -> pd.DataFrame:
    """Rows of "depth_quality" of a model without loops, at its trained loops."""
    iteration = last_recorded(folder)
    other = read_facts(folder, iteration)
    if other["text_sha256"] != facts["text_sha256"]:
        raise InputError(
            f"{folder}: found other recorded tokens, expected those of the looped model."
        )
    quality = _quality(folder, iteration)
    return quality[quality["loops"] == other["trained_loops"]]


def _gains(folder: Path, iteration: int) -> list[Found]:
    """Each recorded criterion at each threshold against random exits, for the page."""
    run = read_recorded(folder, iteration)
    options = [option for of_rule in run.options() for option in of_rule]
    # on all documents: no threshold was chosen by them, so no half is held back
    return measure(run, options, run.depths, SEED)


def _spectrum(folder: Path, iteration: int) -> list[Any]:
    """Radii over the sequences, for the page: one row per (group, reading); empty without them."""
    path = table_path(folder, "recorded_spectrum", iteration)
    if not path.exists():
        return []
    rows = tables.read("recorded_spectrum", path)
    rows["residual"] = rows["error"] / rows["radius"]
    by_point = rows.groupby(["group", "reading", "k"], sort=False)
    radii = by_point["radius"].agg(["median", "min", "max", "size"])
    return list(radii.assign(residual=by_point["residual"].max()).reset_index().itertuples())
