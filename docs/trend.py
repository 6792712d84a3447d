"""Write docs/trend.parquet and docs/trend.svg: numbers that decide claims, at every checkpoint.

    python -m docs.trend

Both are made from the released tables in docs/. A run without a table leaves out what it would
give; of other seeds than the first, docs/seeds has the numbers of few checkpoints.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from docs.results import SEEDS, releases
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from twoscale.base import replacing
from twoscale.claims import geometry
from twoscale.claims.estimates import mean
from twoscale.claims.evidence import MOST_UNDER_FLOOR
from twoscale.claims.geometry import REPORTED_COSINE
from twoscale.claims.scale import scales
from twoscale.claims.seeds import MEAN
from twoscale.config import PROJECT, Config
from twoscale.figures import style

TABLE, FIGURE = "trend.parquet", "trend.svg"  # in docs/
TEN_MINUTES = "gpu-ten-minutes/tables"  # a run of the paper's model without a manifest
STATE = "first_state"  # of the drift-to-loop ratio in figures
DLR = "DLR"


@dataclass(frozen=True)
class Number:
    """A number that decides a claim, of totals (R, K, 2) of a measure to (R,)."""

    claim: int
    name: str
    measure: str
    statistic: Callable[[np.ndarray], np.ndarray]
    least: float  # the paper's range
    most: float
    checked: tuple[int, ...] = ()  # loop steps that may not be rounding
    in_figure: bool = False
    is_logarithmic: bool = False
    quantity: str = ""  # in docs/seeds, of the last checkpoint


LATE = tuple(geometry.LATE_STEPS)
NUMBERS = (
    Number(
        claim=1,
        name="norm at k = 10 over k = 1",
        measure="step_norm",
        statistic=geometry.decayed,
        least=0.0,
        most=0.1,
        in_figure=True,
        is_logarithmic=True,
        quantity="mean norm at k = 10 over that at k = 1",
    ),
    Number(
        claim=2,
        name="decades per loop step",
        measure="step_norm",
        statistic=geometry.decay_rate,
        least=np.nan,
        most=np.nan,
    ),
    Number(
        claim=3,
        name="cosine at k = 1 minus late cosine",
        measure="cosine",
        statistic=geometry.first_minus_late,
        least=-np.inf,
        most=0.0,
        checked=(1, *LATE),
    ),
    Number(
        claim=3,
        name="variance of the late cosine",
        measure="cosine",
        statistic=geometry.late_variance,
        least=0.0,
        most=0.05**2,
        checked=LATE,
    ),
    Number(
        claim=4,
        name="late cosine",
        measure="cosine",
        statistic=geometry.late_mean,
        least=REPORTED_COSINE[0],
        most=REPORTED_COSINE[1],
        checked=LATE,
        in_figure=True,
        quantity="late cosine",
    ),
    Number(
        claim=12,
        name="ln of the mean step norm",
        measure="step_norm",
        statistic=geometry.log_mean_step,
        least=np.nan,
        most=np.nan,
    ),
    Number(
        claim=13,
        name="norm over k = 20 … 29 over k = 10 … 19",
        measure="step_norm",
        statistic=lambda totals: geometry.late_over_early(mean(totals)),
        least=0.5,
        most=np.inf,
        checked=LATE[:10],
        in_figure=True,
        is_logarithmic=True,
        quantity="mean norm over k = 20 … 29 over that over k = 10 … 19",
    ),
    Number(
        claim=13,
        name="turn over k = 20 … 29 over k = 10 … 19",
        measure="cosine",
        statistic=geometry.late_over_early_turn,
        least=0.5,
        most=2.0,
        checked=LATE,
        quantity="mean turn over k = 20 … 29 over that over k = 10 … 19",
    ),
)
DRIFT = Number(
    claim=6,
    name=DLR,
    measure="dlr",
    statistic=mean,
    least=1.0,
    most=np.inf,
    in_figure=True,
    quantity=DLR,
)


# --- the table ------------------------------------------------------------------------------------


def trend(docs: Path) -> pd.DataFrame:
    """One row per run, number, group or boundary and checkpoint.

    Columns run, claim, number, scope, iteration, tokens_per_parameter (of training), value, least
    and most, the paper's range; null where rounding decides the value or the paper has no range.
    """
    parts = []
    for name, release in releases(docs).items():
        run = release.manifest.run
        config = release.runs({})[run]
        folder = Path(release.source, run, "tables")
        of_run = _of_tables(name, folder, scales(config).run.parameters)
        parts.append(of_run)
        seeds = docs / SEEDS / f"{run}.parquet"
        if seeds.is_file():
            parts += _of_seeds(name, pd.read_parquet(seeds), config.seed, of_run)
    parameters = scales(Config()).paper.parameters
    parts.append(_of_tables("GPU, 3 times the tokens", docs / TEN_MINUTES, parameters))
    return pd.concat(parts, ignore_index=True)


def _of_tables(run: str, folder: Path, parameters: int) -> pd.DataFrame:
    rows = []
    if (folder / "loop_metrics.parquet").is_file():
        rows += _of_loops(pd.read_parquet(folder / "loop_metrics.parquet"))
    drift = pd.read_parquet(folder / "drift.parquet")
    drift = drift[(drift["measure"] == DRIFT.measure) & (drift["reference_state"] == STATE)]
    for row in drift.itertuples():
        rows.append(_row(DRIFT, row.boundary, row.iteration, row.mean))
    training = pd.read_parquet(folder / "training.parquet")
    training = training.drop_duplicates("iteration", keep="last")
    tokens = training.set_index("iteration")["tokens_seen"]
    tokens[0] = 0
    frame = pd.DataFrame(rows).assign(run=run)
    frame["tokens_per_parameter"] = frame["iteration"].map(tokens) / parameters
    return frame


def _of_loops(metrics: pd.DataFrame) -> Iterator[dict[str, object]]:
    """The numbers of every group and checkpoint, from means over all tokens."""
    last = metrics["k"].max()  # has no step
    metrics = metrics[metrics["k"] < last]
    for (iteration, group), rows in metrics.groupby(["iteration", "group"], sort=False):
        cosines = rows[rows["measure"] == "cosine"].set_index("k")
        for number in NUMBERS:
            measured = rows[rows["measure"] == number.measure].sort_values("k")
            totals = np.stack([measured["mean"] * measured["count"], measured["count"]], axis=-1)
            (value,) = number.statistic(totals[None])
            nulls, counts = cosines.loc[list(number.checked), ["nulls", "count"]].sum()
            if nulls > MOST_UNDER_FLOOR * (nulls + counts):
                value = np.nan
            yield _row(number, group, iteration, value)


def _of_seeds(
    run: str, seeds: pd.DataFrame, first: int, of_first: pd.DataFrame
) -> Iterator[pd.DataFrame]:
    """The other seeds of a run: their last checkpoint, of some numbers also others."""
    tokens = of_first.drop_duplicates("iteration").set_index("iteration")["tokens_per_parameter"]
    for seed, found in seeds[~seeds["seed"].isin([str(first), MEAN])].groupby("seed"):
        rows = []
        for number in (*NUMBERS, DRIFT):
            of_claim = found[found["claim"] == number.claim]
            for row in of_claim.itertuples():
                scope, _, state = row.scope.partition(", ")
                iteration = _iteration(row.quantity, number.quantity, tokens.index.max())
                if iteration is not None and state in ("", STATE):
                    rows.append(_row(number, scope, iteration, row.value))
        frame = pd.DataFrame(rows).assign(run=f"{run}, seed {seed}")
        yield frame.assign(tokens_per_parameter=frame["iteration"].map(tokens))


def _iteration(quantity: str, wanted: str, last: int) -> int | None:
    """The checkpoint of a quantity of docs/seeds that is the wanted one; None for another."""
    if wanted and quantity in (wanted, f"{wanted}, last"):
        return last
    if wanted == DLR and quantity == f"{DLR}, untrained":
        return 0
    name, _, iteration = quantity.partition(", iteration ")
    return int(iteration) if iteration and name == wanted else None


def _row(number: Number, scope: str, iteration: int, value: float) -> dict[str, object]:
    return {
        "claim": number.claim,
        "number": number.name,
        "scope": scope,
        "iteration": iteration,
        "value": value,
        "least": number.least,
        "most": number.most,
    }


# --- the figure -----------------------------------------------------------------------------------


@style.look()
def draw(table: pd.DataFrame, paper: float) -> Figure:
    """The numbers against tokens per parameter, with the paper's range and its tokens."""
    shown = [number for number in (*NUMBERS, DRIFT) if number.in_figure]
    shown.sort(key=lambda number: number.claim)
    figure = Figure(figsize=(style.DOUBLE, 4.6), layout="constrained")
    table = table.replace({"scope": {"4->5-6": "4", "5-6->7": "5-6"}})  # by the first group
    runs = list(dict.fromkeys(table["run"]))
    colours = dict(zip(runs, sns.color_palette("colorblind", len(runs)), strict=True))
    markers = {"4": "o", "5-6": "s", "7": "^"}
    untrained = table.loc[table["iteration"] > 0, "tokens_per_parameter"].min() / 2
    table["x"] = table["tokens_per_parameter"].clip(lower=untrained)
    for axes, number in zip(figure.subplots(2, 2).flat, shown, strict=True):
        rows = table[table["number"] == number.name].dropna(subset="value")
        sns.lineplot(
            rows,
            x="x",
            y="value",
            hue="run",
            palette=colours,
            style="scope",
            markers=markers,
            dashes=False,
            markersize=4,
            linewidth=0.8,
            legend=False,
            ax=axes,
        )
        axes.set_xscale("log")
        if number.is_logarithmic:
            axes.set_yscale("log")
        axes.axvline(paper, color=style.GREY, linewidth=0.8, linestyle=(0, (1, 1.5)))
        _shade(axes, number)
        axes.set(title=f"claim {number.claim}: {number.name}", xlabel="", ylabel="")
    figure.supxlabel(
        f"tokens of training per parameter; leftmost: untrained; dotted: the paper ({paper:.2g})",
        fontsize=style.LEAST_FONT + 1,
    )
    handles = [Line2D([], [], color=colour) for colour in colours.values()]
    handles += [Line2D([], [], color="black", marker=m, linestyle="") for m in markers.values()]
    labels = [*runs, *(f"group {group} (DLR: after it)" for group in markers)]
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def _shade(axes: Axes, number: Number) -> None:
    """The paper's range, up to the ends of the axis where it has none."""
    low, high = axes.get_ylim()
    bottom = max(number.least, low)
    axes.axhspan(bottom, max(bottom, min(number.most, high)), color="0.88", zorder=0, linewidth=0)
    axes.set_ylim(low, high)


def main() -> None:
    docs = PROJECT / "docs"
    table = trend(docs)
    with replacing(docs / TABLE) as temporary:
        table.to_parquet(temporary)
    paper = Config()
    tokens_per_parameter = paper.training_tokens / scales(paper).paper.parameters
    style.save(draw(table, tokens_per_parameter), docs / FIGURE)
    print(f"docs/{TABLE} docs/{FIGURE}")


if __name__ == "__main__":
    main()
