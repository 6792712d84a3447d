"""The adapter initialisations as a Markdown page, results/adapter_init.md, with an answer computed from the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.base import markdown
from twoscale.claims.evidence import Evidence
from twoscale.claims.findings import FAILS, HOLDS, OPEN
from twoscale.claims.geometry import PAPER_ANGLES, REPORTED_COSINE
from twoscale.report.render import blocks, number, table
from twoscale.studies.adapter_init.compare import ALL, COSINE, LOSS, START, InitRun, compare

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob

HEADER = """\
# Adapter initialisations on the run {run}

The model of the run **{run}** on {text}, trained from {starts} of the projection of state and input, under {seeds}. A
start consists of the share of the state (`model.adapter_share`; the input has the rest) or *random* weights, an
initial state (`model.state_init`) and a position of the second norm (`model.sandwich`). The late cosine is defined as
in claim 4: the mean cosine between successive steps over k = 10 … 29, on held-out text. {interval} A start is judged
like claim 4: the whole interval of every group must be within {least:.2f} … {most:.2f}. Held-out losses are in nats
per token.

**Does a start give {low:g}–{high:g} in all groups?** {answer}

"""
OVER_SEEDS = (
    "A value is the mean over the seeds, and its 95 % interval has the choice of documents and the scatter of the "
    "seeds; that of a loss has the seeds alone."
)
OF_ONE_SEED = "Its 95 % interval is over documents: with one seed nothing is known of another."
NOT_MEASURED = "–"


def run(job: "StudyJob") -> None:
    """Write the table "adapter_init" and results/adapter_init.md."""
    config = job.config
    exits = [name for name in tables.CLAIM_TABLES.values() if name != "loop_sequences"]
    absent = [pd.DataFrame(columns=list(tables.columns(name))) for name in exits]
    runs = []
    for run, loops, training in zip(config.runs, job.files["loops"], job.files["training"], strict=True):
        evidence = Evidence(tables.read("loop_sequences", loops), *absent, max_loops=0, seed=config.seed)  # type: ignore[misc]
        share = float("nan") if run["share"] is None else run["share"]
        start = (share, run["state_init"], run["sandwich"], run["seed"])
        runs.append(InitRun(*start, evidence, tables.read("training", training)))
    found = compare(runs)
    tables.write("adapter_init", found, job.file("table"))
    job.write_text("page", page(found, config.run, config.text))


@dataclass(frozen=True)
class Point:
    """A start at a checkpoint.

    Attributes:
        start: Share, first state and norm.
        iteration: Of the checkpoint.
        cosines: Group -> row of the late cosine over all seeds.
        loss: Row of the held-out loss over all seeds, or None.
    """

    start: tuple[float, str, str]
    iteration: int
    cosines: Mapping[str, pd.Series]
    loss: pd.Series | None

    @property
    def values(self) -> np.ndarray:
        """Late cosines (groups,)."""
        return np.array([row["value"] for row in self.cosines.values()])

    @property
    def distance(self) -> float:
        """How far the late cosine of the farthest group is from the paper's range; NaN if one is missing."""
        low, high = REPORTED_COSINE
        return float(np.maximum(np.maximum(low - self.values, self.values - high), 0).max())

    @property
    def verdict(self) -> str:
        """Verdict on all groups: one that does not hold decides, then one that cannot be judged."""
        verdicts = {row["verdict"] for row in self.cosines.values()}
        return next(verdict for verdict in (FAILS, OPEN, HOLDS) if verdict in verdicts)

    def named(self) -> str:
        """The start and the checkpoint in a sentence."""
        share, state_init, sandwich = self.start
        return f"{init_name(share)}, `{state_init}`, `{sandwich}`, at {checkpoint_name(self.iteration)}"


def init_name(share: float) -> str:
    """A start as printed: "share 0.25" or "random"."""
    return "random" if np.isnan(share) else f"share {share:g}"


def checkpoint_name(iteration: int) -> str:
    return f"iteration {iteration}" if iteration else "iteration 0 (untrained)"


def points(adapter_init: pd.DataFrame) -> list[Point]:
    """The starts at every checkpoint, in the order of the table "adapter_init"."""
    rows = adapter_init[adapter_init["seed"] == ALL]
    return [_point(key, cell) for key, cell in rows.groupby([*START, "iteration"], sort=False, dropna=False)]


def _point(key: tuple, rows: pd.DataFrame) -> Point:
    *start, iteration = key
    cosines = {row["group"]: row for _, row in rows[rows["measure"] == COSINE].iterrows()}
    losses = [row for _, row in rows[rows["measure"] == LOSS].iterrows()]
    return Point(tuple(start), int(iteration), cosines, losses[0] if losses else None)


def answer(found: Sequence[Point]) -> str:
    """Whether a start has all late cosines in the paper's range, at which checkpoint, and how sure that is."""
    measured = [point for point in found if np.isfinite(point.distance)]
    if not measured:
        reasons = dict.fromkeys(row["reason"] for point in found for row in point.cosines.values())
        return f"It cannot be said: {'; '.join(map(markdown, reasons))}."
    reached = [point for point in measured if point.distance == 0]
    if reached:
        first = "Yes, by the mean: " + "; ".join(f"{point.named()} ({_cosines(point)})" for point in reached) + "."
    else:
        nearest = min(measured, key=lambda point: point.distance)
        first = f"None does. The nearest is {nearest.named()}, with {_cosines(nearest)} in the groups {_groups(found)}."
    missing = len(found) - len(measured)
    further = f" {missing} of {len(found)} could not be measured in every group." if missing else ""
    return f"{first}{further} {_verdicts(found)}"


def _verdicts(found: Sequence[Point]) -> str:
    """How many starts at trained and untrained checkpoints have which verdict."""
    counts = pd.Series([point.verdict for point in found]).value_counts()
    parts = [f"{verdict} for {counts[verdict]}" for verdict in (HOLDS, FAILS, OPEN) if verdict in counts]
    return f"Of {len(found)} pairs of a start and a checkpoint, claim 4 {', '.join(parts)}."


def _cosines(point: Point) -> str:
    return " · ".join(NOT_MEASURED if np.isnan(value) else f"{value:.2f}".replace("-", "−") for value in point.values)


def _groups(found: Sequence[Point]) -> str:
    return " · ".join(group.replace("-", "–") for group in found[0].cosines)


# --- the page ------------------------------------------------------------------------------------------------------


def page(adapter_init: pd.DataFrame, run: str, text: str) -> str:
    """Markdown of the table "adapter_init".

    Args:
        adapter_init: The table.
        run: Name of the selected run.
        text: Name of its text.
    """
    found = points(adapter_init)
    seeds = [seed for seed in adapter_init["seed"].unique() if seed != ALL]
    groups = (f"cosine in {group}" for group in found[0].cosines)
    columns = ("start", "first state", "norm", *groups, "held-out loss", "claim 4")
    header = HEADER.format(
        run=markdown(run),
        text=markdown(text),
        starts=_counted(len({init_name(point.start[0]) for point in found}), "start"),
        seeds=_counted(len(seeds), "seed") + f" ({', '.join(seeds)})",
        interval=OVER_SEEDS if len(seeds) > 1 else OF_ONE_SEED,
        least=PAPER_ANGLES[0],
        most=PAPER_ANGLES[1],
        low=REPORTED_COSINE[0],
        high=REPORTED_COSINE[1],
        answer=answer(found),
    )
    parts = []
    for iteration in dict.fromkeys(point.iteration for point in found):
        name = checkpoint_name(iteration)
        rows = [_row(point) for point in found if point.iteration == iteration]
        parts += [f"## {name[0].upper()}{name[1:]}", table(columns, rows)]
    return blocks(header, *parts)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number > 1 else "")


def _row(point: Point) -> tuple[str, ...]:
    share, state_init, sandwich = point.start
    cosines = [_cell(row) if np.isfinite(row["value"]) else markdown(row["reason"]) for row in point.cosines.values()]
    loss = NOT_MEASURED if point.loss is None else _cell(point.loss)
    return (init_name(share), f"`{state_init}`", f"`{sandwich}`", *cosines, loss, point.verdict)


def _cell(row: pd.Series) -> str:
    """A value with its interval, if it has one."""
    bounds = f" ({number(row['low'])} … {number(row['high'])})" if np.isfinite(row["low"]) else ""
    return (number(row["value"]) + bounds).replace("-", "−") or NOT_MEASURED
