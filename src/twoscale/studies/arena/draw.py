"""Value of the exits of a criterion: gains over cost-matched exits, and regret against an oracle; page and figures.

A gain is how many nats lower the cross-entropy is than the reference's at the same evaluations. The regret is the
negative gain over the budget oracle. Units of resampling are documents, and a criterion and its references are
resampled together.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from twoscale import tables
from twoscale.base import InputError
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import OPERATING_POINT, mean_evaluations, summarise_latency, summarise_quality
from twoscale.claims.evidence import Estimate
from twoscale.claims.exits import criterion_name
from twoscale.figures import style
from twoscale.report.render import interval, number, render

if TYPE_CHECKING:
    from twoscale.jobs.rows import StudyJob

INPUTS = ("exit_quality", "exit_loops", "exit_cost_matched", "exit_regret", "oracle_frontier")
ORACLE = "oracle"
COST_MATCHED = {"random": "random exits", "fixed": "fixed loops"}
BETTER, WORSE = "better", "worse"
BOTH = "better or worse, depending on the threshold,"
NO_DIFFERENCE, UNKNOWN = "no difference shown", "cannot be judged"
# Sums over the documents of R samples (R, ...) -> P numbers each (R, P).
Statistic = Callable[[np.ndarray], np.ndarray]


def run(job: "StudyJob") -> None:
    """Write the table "arena" and results/arena.md."""
    config = job.config
    arena = summarise(*map(job.read, INPUTS), seed=config.seed)
    job.write("arena", arena)
    sizes = {name: getattr(config, name) for name in ("run", "text", "draws", "loops", "groups", "tokens")}
    job.write_text("page", page(arena, sizes | {"oracle_tokens": config.oracle_tokens}))


# --- gains and regrets -------------------------------------------------------------------------------------------


def summarise(*inputs: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The table "arena" without its column `run`, from the tables `INPUTS`; `seed` of the bootstrap."""
    quality, exit_loops, cost_matched, regret, frontier = inputs
    rows = [*_gains(quality, exit_loops, cost_matched, seed), *_regrets(regret, frontier, seed)]
    return pd.DataFrame(rows, columns=[name for name in tables.columns("arena") if name != "run"])


def document_sums(rows: pd.DataFrame, columns: list[str], **by: list) -> np.ndarray:
    """Sums of columns over the tokens of each document, and the tokens: (documents, values of `by` …, columns + 1).

    `by` names keys with their values in order; `rows` have every combination in every document.
    """
    sums = rows[columns].mul(rows["tokens"], axis="index").assign(tokens=rows["tokens"])
    keys = [pd.Categorical(rows[name], values) for name, values in by.items()]
    total = sums.groupby([rows["document"], *keys], observed=True).sum().to_numpy(np.float64)
    return total.reshape(-1, *map(len, by.values()), len(columns) + 1)


def estimates(statistic: Statistic, units: np.ndarray, tokens: np.ndarray, seed: int) -> list[Estimate]:
    """Statistics of the sums over documents, units (documents, ...), with intervals if there are two documents."""
    values = statistic(units.sum(axis=0)[None])[0]
    if len(units) < 2:
        return list(map(Estimate, values))
    samples, effective = statistic(bootstrap.totals(units, seed)), bootstrap.effective_number(tokens)
    return [
        Estimate(value, *bootstrap.interval_about(float(value), np.ascontiguousarray(of_value), effective))
        for value, of_value in zip(values, samples.T, strict=True)
    ]


def _row(point: dict[str, Any], gain: Estimate, evaluations: float, ce: float, tokens: np.ndarray) -> dict[str, Any]:
    documents = {"documents": len(tokens), "effective_documents": bootstrap.effective_number(tokens)}
    ends = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
    return point | documents | {"evaluations": evaluations, "ce": ce} | ends


def _gains(quality: pd.DataFrame, exit_loops: pd.DataFrame, cost_matched: pd.DataFrame, seed: int) -> Iterator[dict]:
    """Rows of the table "arena" for the cost-matched exits of every criterion that has some."""
    keys = [*OPERATING_POINT, "sequence"]
    columns = ["evaluations", "ce", "evaluations_reference", "ce_reference"]
    measured = quality.join(mean_evaluations(exit_loops, keys), on=keys).rename(columns={"loops": "evaluations"})
    for criterion, of_criterion in cost_matched.groupby("criterion", sort=False):
        own = measured[measured["criterion"] == criterion]
        thresholds = sorted(own["threshold"].unique())
        for reference in COST_MATCHED:
            matched = of_criterion[of_criterion["reference"] == reference]
            beside = matched.groupby(keys)[["evaluations", "ce"]].mean()  # over draws
            joined = own.join(beside.add_suffix("_reference"), on=keys)
            units = document_sums(joined, columns, threshold=thresholds)  # (documents, thresholds, 5)
            tokens = units[:, 0, 4]
            gains = estimates(lambda sums: (sums[..., 3] - sums[..., 1]) / sums[..., 4], units, tokens, seed)
            for place, (threshold, gain) in enumerate(zip(thresholds, gains, strict=True)):
                evaluations, ce = units[:, place, :2].sum(axis=0) / units[:, place, 4].sum()
                point = {"criterion": criterion, "threshold": threshold, "reference": reference}
                yield _row(point, gain, evaluations, ce, tokens)


def _regrets(regret: pd.DataFrame, frontier: pd.DataFrame, seed: int) -> Iterator[dict]:
    """Rows of the table "arena" for the budget oracle: means over the groups."""
    if regret.empty:
        return
    groups, prices = list(regret["group"].unique()), np.sort(frontier["price"].unique())
    bought = document_sums(frontier, ["evaluations", "ce"], group=groups, price=list(prices))[..., :2]  # (D, G, L, 2)

    def gain_of(sums: np.ndarray) -> np.ndarray:
        """`oracle_gain`, mean over groups, from sums (R, G, 3 + 2 L) -> (R, 1)."""
        means = sums / sums[..., 2:3]
        cost, quality = np.moveaxis(means[..., 3:].reshape(*means.shape[:2], -1, 2), -1, 0)
        return oracle_gain(means[..., 0], means[..., 1], cost, quality, prices).mean(axis=1, keepdims=True)

    for (criterion, threshold), rows in regret.groupby(OPERATING_POINT, sort=False):
        spent = document_sums(rows, ["evaluations", "ce"], group=groups)  # (D, G, 3)
        units = np.concatenate([spent, bought.reshape(*bought.shape[:2], -1)], axis=-1)
        evaluations, ce = (units[..., :2].sum(axis=0) / units[..., 2:3].sum(axis=0)).mean(axis=0)
        (gain,) = estimates(gain_of, units, tokens := units[:, 0, 2], seed)
        # no sample passes 0, where the interval ends
        bounded = Estimate(gain.value, np.minimum(gain.low, 0), np.minimum(gain.high, 0))
        point = {"criterion": criterion, "threshold": threshold, "reference": ORACLE}
        yield _row(point, bounded, evaluations, ce, tokens)


def oracle_gain(
    evaluations: np.ndarray, ce: np.ndarray, cost: np.ndarray, quality: np.ndarray, prices: np.ndarray
) -> np.ndarray:
    """Nats of the budget oracle minus a criterion's at the same evaluations, never above 0: (...).

    At each price the oracle has the least sum of nats and paid evaluations, so it bounds the nats of every choice of
    exits at the evaluations of the criterion from below; the best bound is that at the right price.

    Args:
        evaluations, ce: Means of the criterion (...).
        cost, quality: Mean evaluations and nats of the oracle at each price (..., L).
        prices: Nats per evaluation (L,).
    """
    return (quality + prices * (cost - evaluations[..., None]) - ce[..., None]).max(axis=-1)


# --- verdicts and page -------------------------------------------------------------------------------------------


def judged(arena: pd.DataFrame) -> pd.DataFrame:
    """The gains over cost-matched exits with a column `verdict` for each; intervals are widened for all of them."""
    gains = arena[arena["reference"] != ORACLE]
    return with_verdicts(gains, len(gains))


def with_verdicts(rows: pd.DataFrame, findings: int) -> pd.DataFrame:
    """Rows of the table "arena" with the verdict of each, of `findings` that are judged together."""
    widened = [_estimate(row).widened(findings) for row in rows.itertuples()]
    return rows.assign(
        verdict=[
            UNKNOWN if np.isnan(gain.low) else BETTER if gain.low > 0 else WORSE if gain.high < 0 else NO_DIFFERENCE
            for gain in widened
        ]
    )


def _estimate(row: Any) -> Estimate:
    return Estimate(row.gain, row.gain_low, row.gain_high, freedom=max(1.0, row.effective_documents - 1))


def summary(arena: pd.DataFrame) -> str:
    """One sentence for each kind of cost-matched exits: which criteria are better, and by how much at most."""
    sentences, gains = [], judged(arena)
    for reference, name in COST_MATCHED.items():
        found: dict[str, list[str]] = {verdict: [] for verdict in (BETTER, BOTH, WORSE, NO_DIFFERENCE, UNKNOWN)}
        for criterion, rows in gains[gains["reference"] == reference].groupby("criterion", sort=False):
            words = set(rows["verdict"])  # over all thresholds together
            word = BOTH if {BETTER, WORSE} <= words else next(verdict for verdict in found if verdict in words)
            most = rows.loc[rows["verdict"] == BETTER, "gain"].max()
            by = "" if np.isnan(most) else f" (by up to {number(most)} nats per token)"
            found[word].append(criterion.replace("_", " ") + by)
        listed = "; ".join(f"{verdict} with {', '.join(names)}" for verdict, names in found.items() if names)
        sentences.append(f"Compared with {name} of the same cost: {listed or 'no criterion was compared'}.")
    if len(gains):
        sentences.append(f"These verdicts hold together: intervals are widened for all {len(gains)} gains.")
    return " ".join(sentences)


def page(arena: pd.DataFrame, values: Mapping[str, Any]) -> str:
    """Markdown of the table "arena"; `values` name the run, the text and their sizes."""
    gains, regret = judged(arena), arena[arena["reference"] == ORACLE]
    rows = {
        "gains": [(*_cells(row), COST_MATCHED[row.reference], row.verdict) for row in gains.itertuples()],
        "regrets": list(map(_cells, _turned(regret).itertuples())),
    }
    documents = gains["documents"].max() if len(gains) else 0
    return render("studies/arena/arena.md.j2", **values, **rows, documents=documents, summary=summary(arena))


def _turned(rows: pd.DataFrame) -> pd.DataFrame:
    """The gains with the other sign; 0 - x, because a regret of zero has no sign."""
    return rows.assign(gain=0 - rows["gain"], gain_low=0 - rows["gain_high"], gain_high=0 - rows["gain_low"])


def _cells(row: Any) -> tuple[str, ...]:
    point = row.criterion, f"{row.threshold:.3g}", f"{row.evaluations:.2f}"
    return *point, number(row.gain), interval(_estimate(row))


# --- figure: gains -----------------------------------------------------------------------------------------------

ORACLE_ROW = "oracle: knows each loss"
ORACLE_GAP = 0.6  # between the rows of criteria and that of the oracle, in rows
ROW = 0.7  # share of a row that its thresholds span
LINEAR = 1e-2  # nats
SURE: style.Look = {"marker": "o", "markersize": 2.8, "linestyle": ""}
UNSURE: style.Look = SURE | {"markerfacecolor": "white", "markeredgewidth": 0.7}


@style.look()
def draw_arena(arena: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """One row per exit criterion: gain in nats at equal evaluations (i) over random exits, (ii) over fixed loops.

    A row has a point per threshold, from the top the fewest evaluations first, with the 95 % interval over documents;
    it is filled if the interval, widened for all gains, leaves out 0. The criteria of the paper and of the user are in
    colour, the others grey. The last row is the gain of the oracle over fixed loops, mean over groups, at each count.

    Raises InputError for a table without criteria.
    """
    shown = arena.sort_values("evaluations", kind="stable")
    gains = judged(shown)
    colours = style.criterion_colours(gains["criterion"])
    if not colours:
        raise InputError("table arena: found no rows, expected at least one exit criterion and its cost-matched exits.")
    # the gain of fixed loops over the oracle with the other sign
    fixed = shown[(shown["reference"] == ORACLE) & (shown["criterion"] == "fixed")]
    oracle = with_verdicts(_turned(fixed), len(gains))
    last = len(colours) - 1 + (ORACLE_GAP + 1) * (not oracle.empty)
    figure = style.new_figure(style.DOUBLE, 1.1 + 0.22 * (last + 1), context)
    panels = figure.subplots(1, len(COST_MATCHED), sharex=True, sharey=True)
    for axes, (reference, name), numeral in zip(panels, COST_MATCHED.items(), ("(i)", "(ii)"), strict=True):
        rows = gains[gains["reference"] == reference]
        for place, (criterion, colour) in enumerate(colours.items()):
            _draw_row(axes, place, rows[rows["criterion"] == criterion], colour)
        axes.set_title(f"{numeral}  gain over {name}", loc="left")
        axes.axvline(0, color=style.GREY, linewidth=0.6, zorder=0)
        axes.set_xscale("symlog", linthresh=LINEAR)
        _tick_powers(axes.xaxis)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"cross-entropy saved (nats/token)\nlinear within ±{LINEAR:g}, logarithmic beyond")
        axes.tick_params(axis="y", length=0)
    _draw_row(panels[1], last, oracle, style.BLACK)
    names = dict(enumerate(map(criterion_name, colours))) | ({} if oracle.empty else {last: ORACLE_ROW})
    panels[0].set_yticks(list(names), list(names.values()))
    for tick, colour in zip(panels[0].get_yticklabels(), [*colours.values(), style.BLACK], strict=False):
        tick.set_color(colour)
    panels[0].set_ylim(last + 0.6, -0.6)
    handles = {f"differs from 0 (intervals widened for {len(gains)} gains)": SURE, "no difference shown": UNSURE}
    lines = [Line2D([], [], color=style.GREY, **look) for look in handles.values()]
    figure.legend(lines, list(handles), loc="outside upper center", ncols=len(handles))
    return figure


def _tick_powers(axis: Axis) -> None:
    axis.set_major_locator(FixedLocator(style.SIGNED_POWERS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: style.power_name(value)))


def _draw_row(axes: Axes, place: float, rows: pd.DataFrame, colour: str) -> None:
    """The thresholds of a criterion, one below the other around `place`; filled where a difference is shown."""
    places = place + ROW * (np.linspace(-0.5, 0.5, len(rows)) if len(rows) > 1 else np.zeros(len(rows)))
    axes.hlines(places, rows["gain_low"], rows["gain_high"], color=colour, linewidth=0.5)
    sure = rows["verdict"].isin((BETTER, WORSE)).to_numpy()
    for which, look in ((~sure, UNSURE), (sure, SURE)):
        axes.plot(rows["gain"][which], places[which], color=colour, **look)


# --- figure: Pareto ----------------------------------------------------------------------------------------------

# x axis of each panel: column -> title, label
COSTS = {
    "latency_ms": ("(i)  quality against latency", "latency (ms/token, log scale)"),
    "loops": ("(ii)  quality against loops", "evaluations per token and group (mean, log scale)"),
}
FIXED: style.Look = {"color": style.BLACK, "linestyle": (0, (5, 2)), "linewidth": 1, "marker": "|", "markersize": 5}
LINE: style.Look = {"markersize": 3.5, "linewidth": 1.2}
FRONTIER: style.Look = {"color": "0.8", "linewidth": 3, "solid_joinstyle": "round", "zorder": 0}


@style.look()
def draw_pareto(
    exit_latency: pd.DataFrame, exit_quality: pd.DataFrame, exit_loops: pd.DataFrame, *, context: style.FigureContext
) -> Figure:
    """Two panels, quality over (i) latency and (ii) mean loops: one line per exit criterion along its thresholds.

    The criteria of the paper and those of the user are in colour, with 95 % intervals over documents. The broad grey
    line is the frontier of all other criteria: their points that no other of them beats in both quantities. Quality is
    the cross-entropy minus that of `fixed` at all `context.loops` loop steps. Raises InputError for a table without
    rows.
    """
    for name, table in {"exit_latency": exit_latency, "exit_quality": exit_quality}.items():
        if table.empty:
            raise InputError(f"table {name}: found no rows, expected at least one exit criterion for the figure.")
    times = summarise_latency(exit_latency)[[*OPERATING_POINT, "latency_ms"]]
    points = summarise_quality(exit_quality, exit_loops, context.loops).merge(times, on=OPERATING_POINT)
    full = points.loc[(points["criterion"] == "fixed") & (points["threshold"] == context.loops), "ce"].item()
    points = points.sort_values("threshold").assign(excess=points["ce"] - full)
    colours = style.criterion_colours(exit_quality["criterion"])
    others = [name for name, colour in colours.items() if colour == style.OTHERS]
    coloured = style.criterion_styles(name for name in colours if name not in others)
    styles = {"fixed": FIXED} | {name: look | LINE for name, look in coloured.items()}
    figure = style.new_figure(style.DOUBLE, 2.9, context)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    of_others = points[points["criterion"].isin(others)]
    for axes, (column, (title, label)) in zip(panels, COSTS.items(), strict=True):
        axes.plot(*frontier(of_others[column], of_others["excess"]), **FRONTIER)
        for criterion, look in styles.items():
            rows = points[points["criterion"] == criterion]
            bars = np.maximum([rows["ce"] - rows["low"], rows["high"] - rows["ce"]], 0)
            axes.errorbar(rows[column], rows["excess"], yerr=bars, elinewidth=0.6, **look)
        axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yscale("symlog", linthresh=LINEAR)
        _tick_powers(axes.yaxis)
        axes.set_xlabel(label)
        axes.set_title(title, loc="left")
    panels[0].set_ylabel(f"cross-entropy above that of {context.loops} loops\n(nats/token, linear within ±{LINEAR:g})")
    handles = {criterion_name(name): Line2D([], [], **look) for name, look in styles.items() if name != "fixed"}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    if others:
        handles[f"best of {len(others)} other criteria"] = Line2D([], [], **FRONTIER)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(len(handles), 5))
    return figure


def frontier(cost: pd.Series, excess: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Cost and excess of the points that no other point beats, from low to high cost; their excess falls."""
    order = np.lexsort((excess, cost))
    cost, excess = cost.to_numpy()[order], excess.to_numpy()[order]
    least_before = np.minimum.accumulate(np.r_[np.inf, excess[:-1]])
    return cost[excess < least_before], excess[excess < least_before]
