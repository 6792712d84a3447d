"""What `twoscale exits check` writes: a page, a figure, and the numbers as JSON."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from twoscale.base import replacing
from twoscale.figures import style
from twoscale.replay.check import IS_WORSE, NOT_SHOWN, SHOWN, Check, Found
from twoscale.report.render import estimated, interval, number, render

_LOOKS: dict[str, style.Look] = {
    SHOWN: {"color": style.BLUE, "marker": "o"},
    NOT_SHOWN: {"color": style.OTHERS, "marker": "o"},
    IS_WORSE: {"color": style.ORANGE, "marker": "s"},
}
_RANDOM: style.Look = {"marker": "x", "markersize": 4, "linestyle": ""}


def write(result: Check, folder: Path) -> list[Path]:
    """Write check.md, check.svg, check.json and exits.parquet into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    style.save(draw(result), folder / "check.svg")
    with replacing(folder / "check.md") as temporary:
        temporary.write_text(page(result), encoding="utf-8")
    with replacing(folder / "check.json") as temporary:
        temporary.write_text(json.dumps(as_dict(result), indent=1) + "\n", encoding="utf-8")
    with replacing(folder / "exits.parquet") as temporary:
        pq.write_table(_exits(result), temporary)
    return [folder / name for name in ("check.md", "check.svg", "check.json", "exits.parquet")]


def text(result: Check) -> str:
    """The sentence and a table for a terminal."""
    lines = [result.sentence(), ""]
    form = "{:<44} {:>10} {:>6} {:>10} {:>13}  {}"
    lines.append(form.format("rule", "loop steps", "saved", "excess", "random exits", "better"))
    depths = result.recording.depths
    excess = result.fixed_excess[result.fixed - 1]
    saved = f"{1 - result.fixed / depths:.0%}"
    fixed = f"fixed at {result.fixed} of {depths}"
    lines.append(form.format(fixed, result.fixed, saved, number(float(excess)), "", ""))
    for found in result.found:
        condition, steps, saved, excess, _, random, _, _, verdict = _cells(found, depths)
        lines.append(form.format(condition, steps, saved, excess, random, verdict))
    if result.none_within:
        lines.append(f"no threshold within the tolerance: {', '.join(result.none_within)}")
    return "\n".join(line.rstrip() for line in lines)


def page(result: Check) -> str:
    """Markdown of a result."""
    recording = result.recording
    values = {
        "sentence": result.sentence(),
        "path": recording.path.name,
        "tokens": len(recording.documents),
        "documents": len(np.unique(recording.documents)),
        "reported": result.documents,
        "depths": recording.depths,
        "tolerance": f"{result.tolerance:g}",
        "unit": recording.unit,
        "fixed": result.fixed,
        "none_within": result.none_within,
    }
    rows = [_cells(found, recording.depths) for found in result.found]
    fixed_rows = [(k, number(float(excess))) for k, excess in enumerate(result.fixed_excess, 1)]
    return render("replay/check.md.j2", **values, rows=rows, fixed_rows=fixed_rows)


def _cells(found: Found, depths: int) -> tuple[str, ...]:
    verdict = found.verdict
    if verdict == NOT_SHOWN and found.least > 0:
        verdict += f" ({number(found.least)} would have been)"
    return (
        found.option.condition,
        f"{found.evaluations:.2f}",
        f"{1 - found.evaluations / depths:.0%}",
        estimated(found.excess),
        interval(found.excess),
        number(found.random),
        estimated(found.gain),
        interval(found.gain),
        verdict,
    )


def as_dict(result: Check) -> dict[str, Any]:
    """A result as numbers and texts for JSON; what is not finite is null."""
    best = result.best
    rules = [
        {
            "rule": found.option.rule,
            "condition": found.option.condition,
            "threshold": _finite(found.option.threshold),
            "loop_steps": found.evaluations,
            "excess": _finite(found.excess.value),
            "excess_interval": [_finite(found.excess.low), _finite(found.excess.high)],
            "random_excess": _finite(found.random),
            "gain_over_random": _finite(found.gain.value),
            "gain_interval": [_finite(found.gain.low), _finite(found.gain.high)],
            "verdict": found.verdict,
            "would_have_been_shown": _finite(found.least),
        }
        for found in result.found
    ]
    return {
        "sentence": result.sentence(),
        "recommended": None if best is None else best.option.condition,
        "tolerance": result.tolerance,
        "unit": result.recording.unit,
        "depths": result.recording.depths,
        "smallest_fixed_count": result.fixed,
        "fixed_excess": [_finite(float(value)) for value in result.fixed_excess],
        "rules": rules,
        "without_threshold_within_tolerance": result.none_within,
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _exits(result: Check) -> pa.Table:
    """The exits of each rule at its threshold, on all tokens (table "gate_exits")."""
    recording = result.recording
    count = len(recording.documents)
    parts = [
        pa.table(
            {
                "criterion": [found.option.rule] * count,
                "threshold": np.full(count, found.option.threshold),
                "sequence": recording.sequences,
                "position": recording.positions,
                "depth": found.option.depths(recording),
            }
        )
        for found in result.found
    ]
    return pa.concat_tables(parts) if parts else pa.table({})


@style.look()
def draw(result: Check) -> Figure:
    """Excess over full depth against loop steps: each rule with its random exits, fixed counts."""
    recording = result.recording
    context = style.FigureContext(recording.path.stem, recording.path.name, recording.depths)
    figure = style.new_figure(style.SINGLE * 1.25, 2.9, context)
    axes = figure.subplots()
    counts = np.arange(1, recording.depths + 1)
    axes.plot(counts, result.fixed_excess, color=style.BLACK, marker="|", label="fixed loop counts")
    axes.axhline(result.tolerance, color=style.GREY, linestyle=":", label="tolerance")
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    labelled = set()
    for found in result.found:
        look = _LOOKS[found.verdict]
        at = found.evaluations
        # the rule, and the random exits of the same cost above or below it
        axes.plot([at, at], [found.excess.value, found.random], color=look["color"], linewidth=0.8)
        label = f"rule, better than random exits: {found.verdict}"
        axes.plot(
            at,
            found.excess.value,
            linestyle="",
            label=None if label in labelled else label,
            **look,
        )
        labelled.add(label)
        axes.plot(at, found.random, color=look["color"], **_RANDOM)
    axes.plot([], [], color=style.GREY, label="random exits of the same cost", **_RANDOM)
    for found in result.found:
        if found.verdict == SHOWN:
            place = (found.evaluations, found.excess.value)
            axes.annotate(found.option.rule, place, (4, -8), textcoords="offset points")
    axes.set_yscale("symlog", linthresh=max(result.tolerance, 1e-4))
    axes.set_xlabel("loop steps per token (mean)")
    axes.set_ylabel(f"excess over full depth\n({recording.unit})")
    figure.legend(loc="outside upper center", ncols=2)
    return figure
