"""The depth card of a recorded run, as `snakemake results/depth-card.md` writes it for runs of the workflow.

The recording needs `decode`, and `set_loops` for loop counts beyond training.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.claims.evidence import Estimate
from twoscale.discovery import study_parts
from twoscale.figures import style
from twoscale.recorder import exits
from twoscale.recorder.recorded import facts_path, table_path
from twoscale.recorder.run import SEED, TEXT
from twoscale.report.render import interval, number, table

STUDY = "depth_card"
TOLERANCE = 0.01  # nats per token above the lowest loss up to which a loop count belongs to the plateau
SETTING = """\
at the loop steps of its last group, from recorded passes of the largest loop
count. A loss is that of the recorded state after so many loop steps, decoded as the recorder was told"""
EXITS = """\
On frozen paths: all tokens run all loop steps, and a token that leaves after k of them has the loss of k loop steps of
all tokens. *Gain* is the loss of fixed loops at as many evaluations minus that of the criterion, in nats per token.
"""
SPECTRUM = """\
Leading eigenvalue of the Jacobian of the last loop step over all tokens of a sequence, from exact products in float64.
*Direction* is the same of the map of x/‖x‖. The residual is relative to the radius.
"""


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
    folder = Path(folder)
    iteration = _last_iteration(folder) if iteration is None else iteration
    facts, quality, states = _facts(folder, iteration), _quality(folder, iteration), _states(folder, iteration)
    trained, twin = facts["trained_loops"], None
    if unlooped is not None:
        twin = _unlooped(Path(unlooped), facts)
    compare, page, figure = (_part(name) for name in ("compare", "page", "figure"))
    card = compare.summarise(quality, states, trained, SEED).assign(run=folder.name)
    findings = compare.findings(quality, states, trained, tolerance, twin, SEED).assign(run=folder.name)
    written = {name: folder / "tables" / f"{name}.parquet" for name in ("depth_card", "depth_findings")}
    for (name, path), frame in zip(written.items(), (card, findings), strict=True):
        tables.write(name, frame[list(tables.columns(name))], path)
    picture, target = folder / "depth_card.svg", folder / "depth-card.md"
    context = style.FigureContext(folder.name, text, int(quality["loops"].max()))
    style.save(figure.draw(card, findings, context=context), picture)
    identity = _identity(facts, text) | {"checkpoint": iteration} | page.commit()
    further = [*_exits(folder, iteration), *_spectrum(folder, iteration)]
    content = page.page(card, findings, folder.name, identity, picture.name, SETTING, "sequences", further)
    with replacing(target) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return [target, picture, *written.values()]


def _part(name: str) -> ModuleType:
    parts = study_parts(name)
    if STUDY not in parts:
        raise InputError(f"study {STUDY}: not found in twoscale/studies, but required for a depth card.")
    return parts[STUDY]


# --- what was recorded ------------------------------------------------------------------------------------------


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
    digest = facts["text_sha256"][:12]
    return {
        "model": f"{facts['model']}; looped: {modules}",
        "trained loops": facts["trained_loops"],
        "text": f"{text}, {facts['tokens']} tokens in {facts['sequences']} sequences, SHA-256 {digest}",
        "precision": facts["precision"],
    }


# --- further sections -------------------------------------------------------------------------------------------


def _exits(folder: Path, iteration: int) -> Iterator[str]:
    """The section on exits, and the table "recorded_gains"; nothing without exits."""
    path = table_path(folder, "recorded_exits", iteration)
    if not path.exists():
        return
    gains = exits.gains(tables.read("recorded_exits", path), SEED)
    tables.write(
        "recorded_gains", gains[list(tables.columns("recorded_gains"))], folder / "tables" / "recorded_gains.parquet"
    )
    intervals = (Estimate(row.gain, row.gain_low, row.gain_high) for row in gains.itertuples())
    rows = (
        (
            row.criterion,
            f"{row.threshold:.3g}",
            f"{row.evaluations:.2f}",
            f"{row.ce:.3f}",
            number(row.gain),
            interval(gain),
        )
        for row, gain in zip(gains.itertuples(), intervals, strict=True)
    )
    yield from ("## Exits", EXITS)
    yield table(("criterion", "τ", "evaluations", "loss", "gain", "95 % interval"), rows)


def _spectrum(folder: Path, iteration: int) -> Iterator[str]:
    """The section on the spectrum; nothing without one."""
    path = table_path(folder, "recorded_spectrum", iteration)
    if not path.exists():
        return
    rows = tables.read("recorded_spectrum", path)
    by_point = rows.assign(residual=rows["error"] / rows["radius"]).groupby(["group", "reading", "k"], sort=False)
    cells = ((*point, *_radii(own["radius"]), f"{own['residual'].max():.1g}", len(own)) for point, own in by_point)
    yield from ("## Spectrum", SPECTRUM)
    yield table(("group", "reading", "loop step", "radius", "range", "residual, at most", "sequences"), cells)


def _radii(radius: pd.Series) -> tuple[str, str]:
    """Median and range over sequences."""
    return f"{radius.median():.4f}", f"{radius.min():.4f} … {radius.max():.4f}"
