"""The page loops.html: tokens of a text as they pass the loops of a model, step by step.

The page has its tables as JSON, so it needs no server, no network and no library. Every number is a
cell of a table: nothing is computed here but the order and the digits.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import InputError
from twoscale.jobs.table_job import TableJob, job_files
from twoscale.report.render import render

MEASURES = ("step_norm", "cosine")  # of the table "trajectories"
PREDICTIONS = ("entropy", "ce")  # of the table "loop_tokens"
PLANE = ("pc1", "pc2")  # of the table "state_paths"
DIGITS, PLANE_DIGITS = 5, 7  # significant ones; a late loop step is a thousandth of the plane
MOST_STATES = 14_000  # on a page, which then has less than 1.5 MB

# Element i of a list is about the token at position i.
Values = list[float | None]


@dataclass(frozen=True)
class LoopTables:
    """The tables of a page, all of one sequence; those of predictions may be empty."""

    trajectories: pd.DataFrame
    state_paths: pd.DataFrame
    loop_tokens: pd.DataFrame
    loop_exits: pd.DataFrame


@job_files(reads="trajectories state_paths loop_tokens loop_exits", writes="page")
def write_loops(job: TableJob) -> None:
    """Write the page of a run."""
    paths = job.read("state_paths")
    sequence = int(paths["sequence"].iloc[0])
    found = LoopTables(
        tables.read("trajectories", job.file("trajectories"), sequence=sequence),
        paths,
        job.read("loop_tokens"),
        job.read("loop_exits"),
    )
    tokens = found.loop_tokens["position"].max() + 1
    job.write_text("page", loops_page(found, job.config.run, job.config.text, tokens))


def loops_page(
    found: LoopTables,
    run: str,
    text: str,
    tokens: int,
    places: Sequence[tuple[int, int]] = (),
    unit: str = "token",
    what: str = "what would be predicted next if the loop ended here",
    mark: str = "",
) -> str:
    """The page as HTML.

    Args:
        found: The tables of one sequence.
        run: Name of the run.
        text: Name of the text.
        tokens: Most tokens on the page, the first of the sequence; fewer if the loops are long.
        places: Row and column of each token in a grid, from 1, for what is no text.
        unit: Word for a token.
        what: The prediction of a state in words.
        mark: A prediction that is marked wherever it is made.

    Raises:
        InputError: for tables without a looped group.
    """
    labels = found.trajectories["group"].drop_duplicates().tolist()
    if not labels:
        raise InputError(f"run {run}: found no looped group, expected at least one for loops.html.")
    states = int(found.trajectories.groupby("group")["k"].nunique().sum())
    shown = found.state_paths.drop_duplicates("position").sort_values("position")["token"]
    length = min(tokens, len(shown), max(1, MOST_STATES // states))
    predictions = sorted({*found.loop_tokens["predicted"]})
    data = {
        "tokens": shown.tolist()[:length],
        "targets": _targets(found.loop_tokens, length),
        "predictions": predictions,
        "groups": [_group(found, label, length, predictions) for label in labels],
        "path": _path(found.state_paths, length),
        "places": [*places][:length],
        "unit": unit,
        "mark": mark,
    }
    text_of_data = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return render(
        "report/templates/loops.html.j2",
        run=run,
        text=text,
        iteration=int(found.state_paths["iteration"].iloc[0]),
        tokens=length - (data["targets"].count(None) if places else 0),
        unit=unit,
        what=what,
        shares=[round(100 * found.state_paths[f"{name}_share"].iloc[0]) for name in PLANE],
        # no word may end the script
        data=text_of_data.replace("<", "\\u003c"),
    )


def _targets(rows: pd.DataFrame, length: int) -> list[str | None]:
    """The token that each token has to predict, if that is known."""
    known = dict(zip(rows["position"], rows["target"], strict=True))
    return [known.get(position) for position in range(length)]


def _group(
    found: LoopTables, label: str, length: int, predictions: Sequence[str]
) -> dict[str, Any]:
    """What the page says about one looped group, lists by loop step and token."""
    measured, predicted, exits = (
        frame[frame["group"] == label]
        for frame in (found.trajectories, found.loop_tokens, found.loop_exits)
    )
    loops = int(measured["k"].max())
    number = {word: place for place, word in enumerate(predictions)}
    predicted = predicted.assign(predicted=predicted["predicted"].map(number))
    shape = (loops + 1, length)
    values = {name: _matrix(measured, name, shape) for name in MEASURES}
    values |= {name: _matrix(predicted, name, shape) for name in PREDICTIONS}
    return {
        "label": label,
        "loops": loops,
        "values": values,
        "predicted": _matrix(predicted, "predicted", shape),
        "right": _matrix(predicted, "is_right", shape),
        "exits": _exits(exits, length),
    }


def _matrix(
    rows: pd.DataFrame, name: str, shape: tuple[int, int], digits: int = DIGITS, by: str = "k"
) -> list[Values]:
    """A column by loop step and token, null where there is no number."""
    frame = rows.pivot(index=by, columns="position", values=name)
    frame = frame.reindex(index=range(shape[0]), columns=range(shape[1]))
    return [_rounded(row, digits) for row in frame.to_numpy(dtype=float, na_value=np.nan)]


def _rounded(values: np.ndarray, digits: int) -> Values:
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def _exits(rows: pd.DataFrame, length: int) -> list[dict[str, Any]]:
    """Criterion, threshold and loop steps of each token: 0 if it does not leave, null if it has no
    target.
    """
    # all in one row of a matrix
    rows = rows.assign(loops=rows["loops"].where(rows["left"], 0), k=0)
    return [
        {
            "criterion": criterion,
            "threshold": threshold,
            "loops": _matrix(one, "loops", (1, length))[0],
        }
        for (criterion, threshold), one in rows.groupby(["criterion", "threshold"], sort=False)
    ]


def _path(rows: pd.DataFrame, length: int) -> list[dict[str, Any]]:
    """Every site of the model in its order, with the coordinates of each token."""
    sites = rows.drop_duplicates("site").sort_values("site")
    shape = (int(sites["site"].max()) + 1, length)
    first, second = (_matrix(rows, name, shape, PLANE_DIGITS, "site") for name in PLANE)
    described = sites.fillna({"group": ""})[["group", "k", "follows"]].to_dict("records")
    return [
        {
            "group": site["group"],
            "k": None if pd.isna(site["k"]) else int(site["k"]),
            "follows": bool(site["follows"]),
            "x": x,
            "y": y,
        }
        for site, x, y in zip(described, first, second, strict=True)
    ]
