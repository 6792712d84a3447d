"""The depth card of a recorded run, as `snakemake results/depth-card.md` writes it for runs of the workflow.

The recording needs `decode`, and `set_loops` for loop counts beyond training.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from twoscale import tables
from twoscale.base import InputError, replacing, study_parts
from twoscale.claims.evidence import Estimate
from twoscale.figures import style
from twoscale.recorder import exits
from twoscale.recorder.recorded import facts_path, table_path
from twoscale.recorder.run import SEED, TEXT
from twoscale.report.render import interval, number

TOLERANCE = 0.01  # nats per token above the lowest loss up to which a loop count belongs to the plateau


def write_card(
    folder: str | Path,
    text: str = TEXT,
    unlooped: str | Path | None = None,
    iteration: int | None = None,
    tolerance: float = TOLERANCE,
) -> list[Path]:
    """Write depth-card.md, its picture and its tables into the folder of a recorded run.

    Args:
        folder: Folder of the run, such as results/mine; its name is the name of the run.
        text: Name of the text.
        unlooped: Folder of a recording of a model without loops on the same sequences, at its trained loops.
        iteration: Training iteration of the weights; by default the last one that was recorded with `decode`.
        tolerance: Nats per token of the plateau.

    Raises:
        InputError: The folder has no recording with `decode`, or `unlooped` one of other sequences.
    """
    if (depth := study_parts("draw").get("depth")) is None:
        raise InputError("study depth: not found in twoscale/studies, but required for a depth card.")
    folder = Path(folder)
    iteration = _last_iteration(folder) if iteration is None else iteration
    facts, quality, states = _facts(folder, iteration), _quality(folder, iteration), _states(folder, iteration)
    twin = None if unlooped is None else _unlooped(Path(unlooped), facts)
    card = depth.summarise_card(quality, states, facts["trained_loops"], SEED)
    findings = depth.findings(quality, states, facts["trained_loops"], tolerance, twin, SEED)
    written = {name: folder / "tables" / f"{name}.parquet" for name in ("depth_card", "depth_findings")}
    for (name, path), frame in zip(written.items(), (card, findings), strict=True):
        tables.write(name, frame.assign(run=folder.name)[list(tables.columns(name))], path)
    picture, target = folder / "depth_card.svg", folder / "depth-card.md"
    context = style.FigureContext(folder.name, text, int(quality["loops"].max()))
    style.save(depth.draw_depth_card(card, findings, context=context), picture)
    further = {"gains": _gains(folder, iteration), "spectrum": _spectrum(folder, iteration)}
    identity = _identity(facts, text) | {"checkpoint": iteration}
    with replacing(target) as temporary:
        content = depth.card_page(card, findings, folder.name, identity, picture.name, **further)
        temporary.write_text(content, encoding="utf-8")
    return [target, picture, *written.values()]


def _last_iteration(folder: Path) -> int:
    files = sorted((folder / "depth").glob("iteration_*.parquet"))
    if not files:
        raise InputError(f"{folder}: found no depth/iteration_*.parquet, expected a recording with decode.")
    return int(files[-1].stem.removeprefix("iteration_"))


def _facts(folder: Path, iteration: int) -> dict[str, Any]:
    path = facts_path(folder, iteration)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}), expected a file written by a recorder.") from error


def _quality(folder: Path, iteration: int) -> pd.DataFrame:
    path = table_path(folder, "depth_quality", iteration)
    if not path.exists():
        raise InputError(f"{path}: found no such file, expected a recording with decode.")
    return tables.read("depth_quality", path)


def _states(folder: Path, iteration: int) -> pd.DataFrame:
    """The table "depth_states" of a recording: medians over the tokens of each sequence."""
    keys = ["iteration", "group", "k", "sequence", "document"]
    measures = [name for name in tables.columns("depth_states") if name not in (*keys, "tokens")]
    rows = pd.read_parquet(table_path(folder, "trajectories", iteration), columns=[*keys, *measures])
    by_sequence = rows.groupby(keys, sort=False)
    return by_sequence[measures].median().assign(tokens=by_sequence.size()).reset_index()


def _unlooped(folder: Path, facts: dict[str, Any]) -> pd.DataFrame:
    """Rows of "depth_quality" of a model without loops, at its trained loops."""
    iteration = _last_iteration(folder)
    other = _facts(folder, iteration)
    if other["text_sha256"] != facts["text_sha256"]:
        raise InputError(f"{folder}: found other recorded tokens, expected those of the looped model.")
    quality = _quality(folder, iteration)
    return quality[quality["loops"] == other["trained_loops"]]


def _identity(facts: dict[str, Any], text: str) -> dict[str, Any]:
    """Description of the recording: rows of the page."""
    modules = ", ".join(f"{group} ({name})" for group, name in facts["modules"].items())
    sizes = f"{facts['tokens']} tokens in {facts['sequences']} sequences"
    return {
        "model": f"{facts['model']}; looped: {modules}",
        "trained loops": facts["trained_loops"],
        "text": f"{text}, {sizes}, SHA-256 {facts['text_sha256'][:12]}",
        "precision": facts["precision"],
    }


def _gains(folder: Path, iteration: int) -> list[tuple[str, ...]]:
    """Cells of the table of exits, and the table "recorded_gains"; empty without exits."""
    path = table_path(folder, "recorded_exits", iteration)
    if not path.exists():
        return []
    gains = exits.gains(tables.read("recorded_exits", path), SEED)[list(tables.columns("recorded_gains"))]
    tables.write("recorded_gains", gains, folder / "tables" / "recorded_gains.parquet")
    return [
        (
            *(row.criterion, f"{row.threshold:.3g}", f"{row.evaluations:.2f}", f"{row.ce:.3f}", number(row.gain)),
            interval(Estimate(row.gain, row.gain_low, row.gain_high)),
        )
        for row in gains.itertuples()
    ]


def _spectrum(folder: Path, iteration: int) -> list[tuple[object, ...]]:
    """Cells of the table of the spectrum: median and range of the radius over sequences; empty without one."""
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
