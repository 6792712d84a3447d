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
from twoscale.replay.recording import Recording
from twoscale.report.render import estimated, interval, number, render

_LOOKS: dict[str, style.Look] = {
    SHOWN: {"color": style.BLUE, "marker": "o"},
    NOT_SHOWN: {"color": style.OTHERS, "marker": "o"},
    IS_WORSE: {"color": style.ORANGE, "marker": "s"},
}
_LABELS = {
    SHOWN: "rule, better than random exits",
    NOT_SHOWN: "rule, no difference shown",
    IS_WORSE: "rule, worse than random exits",
}
_RANDOM: style.Look = {"marker": "x", "markersize": 4, "linestyle": ""}


def write(result: Check, folder: Path) -> None:
    """Write check.md, check.svg, check.json and, for a recording, exits.parquet into a folder."""
    style.save(draw(result), folder / "check.svg")
    with replacing(folder / "check.md") as temporary:
        temporary.write_text(page(result), encoding="utf-8")
    with replacing(folder / "check.json") as temporary:
        temporary.write_text(json.dumps(as_dict(result), indent=1) + "\n", encoding="utf-8")
    if isinstance(result.data, Recording):
        with replacing(folder / "exits.parquet") as temporary:
            pq.write_table(_exits(result.data, result), temporary)


def unit(is_loss: bool) -> str:
    """What an excess is in."""
    return "nats per token" if is_loss else "share of changed predictions"


def text(result: Check) -> str:
    """The sentence and a table for a terminal."""
    lines = [result.sentence(), ""]
    form = "{:<44} {:>10} {:>6} {:>10} {:>13}  {}"
    lines.append(form.format("rule", "loop steps", "saved", "excess", "random exits", "better"))
    depths = result.data.depths
    of_fixed = number(result.fixed_excess[result.fixed])
    saved = f"{1 - result.fixed / depths:.0%}"
    fixed = f"fixed at {result.fixed:.3g} of {depths}"
    lines.append(form.format(fixed, f"{result.fixed:.3g}", saved, of_fixed, "", ""))
    for found in result.found:
        condition, steps, saved, excess, _, random, _, _, verdict = _cells(found, depths)
        lines.append(form.format(condition, steps, saved, excess, random, verdict))
    if result.none_within:
        lines.append(f"no threshold within the tolerance: {', '.join(result.none_within)}")
    if result.data.note:
        lines.append(f"{result.data.path.name}: {result.data.note}")
    return "\n".join(line.rstrip() for line in lines)


def page(result: Check) -> str:
    """Markdown of a result."""
    data = result.data
    values = {
        "sentence": result.sentence(),
        "path": data.path.name,
        "note": data.note,
        "is_loss": data.is_loss,
        "tokens": int(data.tokens.sum()),
        "documents": len(data.tokens),
        "reported": result.documents,
        "depths": data.depths,
        "tolerance": f"{result.tolerance:g}",
        "unit": unit(data.is_loss),
        "fixed": f"{result.fixed:.3g}",
        "none_within": result.none_within,
        "is_replayed": isinstance(data, Recording),
    }
    rows = [_cells(found, data.depths) for found in result.found]
    fixed_rows = [(f"{k:.3g}", number(excess)) for k, excess in result.fixed_excess.items()]
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
        "unit": unit(result.data.is_loss),
        "note": result.data.note,
        "reported_documents": result.documents,
        "depths": result.data.depths,
        "smallest_fixed_count": result.fixed,
        "fixed_excess": result.fixed_excess,
        "rules": rules,
        "without_threshold_within_tolerance": result.none_within,
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _exits(recording: Recording, result: Check) -> pa.Table:
    """The exits of each rule at its threshold, on all tokens (table "gate_exits")."""
    count = len(recording.documents)
    parts = [
        pa.table(
            {
                "criterion": [found.option.rule] * count,
                "threshold": np.full(count, float(found.option.threshold)),
                "sequence": recording.sequences,
                "position": recording.positions,
                "depth": found.option.exits(recording).evaluations,
            }
        )
        for found in result.found
        if found.option.exits is not None
    ]
    return pa.concat_tables(parts) if parts else pa.table({})


@style.look()
def draw(result: Check, context: style.FigureContext | None = None) -> Figure:
    """Excess over full depth against loop steps: each rule with its random exits, fixed counts."""
    data = result.data
    context = context or style.FigureContext(data.path.stem, data.path.name, data.depths)
    figure = style.new_figure(style.SINGLE * 1.4, 2.9, context)
    axes = figure.subplots()
    counts, excess = zip(*result.fixed_excess.items(), strict=True)
    axes.plot(counts, excess, color=style.BLACK, marker="|", label="fixed loop counts")
    axes.axhline(result.tolerance, color=style.GREY, linestyle=":", label="tolerance")
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
    for found in result.found:
        look = _LOOKS[found.verdict]
        at = found.evaluations
        # the rule, and the random exits of the same cost above or below it
        axes.plot([at, at], [found.excess.value, found.random], color=look["color"], linewidth=0.8)
        axes.plot(at, found.excess.value, linestyle="", **look)
        axes.plot(at, found.random, color=look["color"], **_RANDOM)
    # lines without points, for the legend only
    for verdict in dict.fromkeys(found.verdict for found in result.found):
        axes.plot([], [], linestyle="", label=_LABELS[verdict], **_LOOKS[verdict])
    axes.plot([], [], color=style.GREY, label="random exits of the same cost", **_RANDOM)
    if result.best is not None:
        place = (result.best.evaluations, result.best.excess.value)
        axes.annotate(result.best.option.rule, place, (5, 4), textcoords="offset points")
    axes.margins(y=0.12)
    # linear near 0, because an excess may be 0 or negative
    axes.set_yscale("symlog", linthresh=max(result.tolerance, 1e-4))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("loop steps per token (mean)")
    axes.set_ylabel(f"excess over full depth\n({unit(data.is_loss)})")
    figure.legend(loc="outside upper center", ncols=2)
    return figure
