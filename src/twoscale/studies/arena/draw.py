"""Value of the exits of a criterion: gains over cost-matched exits, and regret against an oracle.

A gain is how many nats lower the cross-entropy is than the reference's at the same evaluations. The
regret is the negative gain over the budget oracle. Units of resampling are documents, and a
criterion and its references are resampled together.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import (
    OPERATING_POINT,
    mean_evaluations,
    summarise_latency,
    summarise_quality,
)
from twoscale.claims.evidence import Estimate
from twoscale.claims.exits import criterion_name
from twoscale.figures import style
from twoscale.jobs.table_job import StudyJob, job_files
from twoscale.report.render import number, render

ORACLE = "oracle"
COST_MATCHED = {"random": "random exits", "fixed": "fixed loops"}
BETTER, WORSE = "better", "worse"
BOTH = "better or worse, depending on the threshold"
NO_DIFFERENCE, UNKNOWN = "no relevant difference", "cannot be judged"
VERDICTS = (BETTER, BOTH, WORSE, NO_DIFFERENCE, UNKNOWN)
# Sums over the documents of R samples (R, ...) -> P numbers each (R, P).
Statistic = Callable[[np.ndarray], np.ndarray]


@job_files(
    reads="oracle_frontier exit_reliability exit_quality exit_loops exit_cost_matched exit_regret",
    writes="arena page",
)
def run(job: StudyJob) -> None:
    """Write the table "arena" and results/arena.md."""
    config = job.config
    arena = summarise(
        job.read("exit_quality"),
        job.read("exit_loops"),
        job.read("exit_cost_matched"),
        job.read("exit_regret"),
        job.read("oracle_frontier"),
        seed=config.seed,
    )
    job.write("arena", arena)
    halves = reliability(job.read("exit_reliability"), config.seed)
    names = ("run", "text", "draws", "loops", "groups", "tokens", "oracle_tokens")
    job.write_text("page", page(arena, halves, {name: getattr(config, name) for name in names}))


# --- gains and regrets ----------------------------------------------------------------------------


def summarise(
    quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    cost_matched: pd.DataFrame,
    regret: pd.DataFrame,
    frontier: pd.DataFrame,
    seed: int = 0,
) -> pd.DataFrame:
    """The table "arena" without its column `run`, from those of the measurements.

    `seed` is that of the bootstrap.
    """
    rows = [*_gains(quality, exit_loops, cost_matched, seed), *_regrets(regret, frontier, seed)]
    return pd.DataFrame(rows, columns=[name for name in tables.columns("arena") if name != "run"])


def document_sums(rows: pd.DataFrame, columns: list[str], **by: list) -> np.ndarray:
    """Sums over the tokens of each document: (documents, values of `by` …, columns + 1).

    The last entry counts the tokens. `by` names keys with their values in order; `rows` have every
    combination in every document.
    """
    tokens = rows["tokens"]
    sums = rows[columns].mul(tokens, axis="index").assign(tokens=tokens)
    keys = [rows["document"]]
    shape = []
    for name, values in by.items():
        keys.append(pd.Categorical(rows[name], values))  # sorts as `values` are
        shape.append(len(values))
    total = sums.groupby(keys, observed=True).sum()
    return total.to_numpy(np.float64).reshape(-1, *shape, len(columns) + 1)


def estimates(
    statistic: Statistic, units: np.ndarray, tokens: np.ndarray, seed: int
) -> list[Estimate]:
    """Statistics of the sums over documents, with intervals if there are two documents.

    `units` (documents, ...) are the sums of each document, `tokens` (documents,) its tokens.
    """
    values = statistic(units.sum(axis=0)[None])[0]  # (P,)
    if len(units) < 2:
        return [Estimate(value) for value in values]
    samples = statistic(bootstrap.totals(units, seed))  # (R, P)
    effective = bootstrap.effective_number(tokens)
    found = []
    for value, of_value in zip(values, samples.T, strict=True):
        of_value = np.ascontiguousarray(of_value)
        bounds = bootstrap.interval_about(float(value), of_value, effective)
        found.append(Estimate(value, *bounds))
    return found


def _row(
    criterion: str,
    threshold: float,
    reference: str,
    gain: Estimate,
    evaluations: float,
    ce: float,
    tokens: np.ndarray,
) -> dict[str, Any]:
    """A row of the table "arena"; `tokens` are those of each document."""
    return {
        "criterion": criterion,
        "threshold": threshold,
        "reference": reference,
        "documents": len(tokens),
        "effective_documents": bootstrap.effective_number(tokens),
        "evaluations": evaluations,
        "ce": ce,
        "gain": gain.value,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }


def _gains(
    quality: pd.DataFrame, exit_loops: pd.DataFrame, cost_matched: pd.DataFrame, seed: int
) -> Iterator[dict]:
    """Rows of the table "arena" for the cost-matched exits of every criterion that has some."""
    keys = [*OPERATING_POINT, "sequence"]
    spent = mean_evaluations(exit_loops, keys).rename("evaluations")
    measured = quality.join(spent, on=keys)
    for criterion, of_criterion in cost_matched.groupby("criterion", sort=False):
        own = measured[measured["criterion"] == criterion]
        thresholds = sorted(own["threshold"].unique())
        for reference in COST_MATCHED:
            matched = of_criterion[of_criterion["reference"] == reference]
            means = matched.groupby(keys)[["evaluations", "ce"]].mean()  # over draws
            joined = own.join(means.add_suffix("_reference"), on=keys)
            columns = ["evaluations", "ce", "evaluations_reference", "ce_reference"]
            units = document_sums(joined, columns, threshold=thresholds)  # (D, thresholds, 5)
            tokens = units[:, 0, 4]
            gains = estimates(_mean_gain, units, tokens, seed)
            for place, (threshold, gain) in enumerate(zip(thresholds, gains, strict=True)):
                evaluations, ce = units[:, place, :2].sum(axis=0) / units[:, place, 4].sum()
                yield _row(criterion, threshold, reference, gain, evaluations, ce, tokens)


def _mean_gain(sums: np.ndarray) -> np.ndarray:
    """Nats of the reference minus the criterion's, per token: sums (R, P, 5) -> (R, P)."""
    return (sums[..., 3] - sums[..., 1]) / sums[..., 4]


def _regrets(regret: pd.DataFrame, frontier: pd.DataFrame, seed: int) -> Iterator[dict]:
    """Rows of the table "arena" for the budget oracle: means over the groups."""
    if regret.empty:
        return
    groups, prices = list(regret["group"].unique()), np.sort(frontier["price"].unique())
    columns = ["evaluations", "ce"]
    bought = document_sums(frontier, columns, group=groups, price=list(prices))[..., :2]
    bought = bought.reshape(*bought.shape[:2], -1)  # (D, G, 2 L): evaluations and nats at L prices

    def gain_of(sums: np.ndarray) -> np.ndarray:
        """`oracle_gain`, mean over groups, from sums (R, G, 3 + 2 L) -> (R, 1)."""
        means = sums / sums[..., 2:3]  # over tokens
        gains = oracle_gain(
            evaluations=means[..., 0],
            ce=means[..., 1],
            cost=means[..., 3::2],
            quality=means[..., 4::2],
            prices=prices,
        )
        return gains.mean(axis=1, keepdims=True)

    for (criterion, threshold), rows in regret.groupby(OPERATING_POINT, sort=False):
        spent = document_sums(rows, columns, group=groups)  # (D, G, 3)
        units = np.concatenate([spent, bought], axis=-1)
        tokens = units[:, 0, 2]
        of_groups = units[..., :2].sum(axis=0) / units[..., 2:3].sum(axis=0)  # (G, 2)
        evaluations, ce = of_groups.mean(axis=0)
        (gain,) = estimates(gain_of, units, tokens, seed)
        # no sample passes 0, where the interval ends
        gain = Estimate(gain.value, np.minimum(gain.low, 0), np.minimum(gain.high, 0))
        yield _row(criterion, threshold, ORACLE, gain, evaluations, ce, tokens)


def oracle_gain(
    evaluations: np.ndarray,
    ce: np.ndarray,
    cost: np.ndarray,
    quality: np.ndarray,
    prices: np.ndarray,
) -> np.ndarray:
    """Nats of the budget oracle minus a criterion's at the same evaluations, never above 0: (...).

    At each price the oracle has the least sum of nats and paid evaluations, so it bounds the nats
    of every choice of exits at the evaluations of the criterion from below; the best bound is that
    at the right price.

    Args:
        evaluations, ce: Means of the criterion (...).
        cost, quality: Mean evaluations and nats of the oracle at each price (..., L).
        prices: Nats per evaluation (L,).
    """
    bounds = quality + prices * (cost - evaluations[..., None])  # of the nats, at each price
    return (bounds - ce[..., None]).max(axis=-1)


def reliability(table: pd.DataFrame, seed: int = 0) -> tuple[Estimate, Estimate]:
    """Correlation of a token's best odd with its best even depth, and with that of other tokens.

    They are means over groups. The first is the split-half reliability of the oracle's choices: 0
    if they follow noise.
    """
    names = ["odd", "even", "odd_odd", "even_even", "odd_even", "odd_other"]
    units = document_sums(table, names, group=list(table["group"].unique()))  # (D, G, 7)
    same, other = estimates(_correlations, units, units[:, 0, 6], seed)
    return same, other


def _correlations(sums: np.ndarray) -> np.ndarray:
    """Correlations of odd and even depths, mean over groups: (R, G, 7) -> (R, 2)."""
    means = np.moveaxis(sums[..., :6] / sums[..., 6:], -1, 0)  # E[x], E[y], E[x²], E[y²], E[xy] …
    odd, even, odd_odd, even_even, *products = means
    spread = np.sqrt((odd_odd - odd**2) * (even_even - even**2))  # both deviations
    found = []
    with np.errstate(invalid="ignore", divide="ignore"):
        for product in products:
            correlation = (product - odd * even) / spread  # covariance over deviations
            found.append(correlation.mean(axis=1))
    return np.stack(found, axis=-1)


# --- verdicts -------------------------------------------------------------------------------------

# The primary family, fixed before any run: the criteria of the paper and those of the parent work.
PRIMARY = {"step_norm", "kl", "acceleration"}
PRIMARY |= {"step_norm_relative", "cosine", "entropy_diff", "argmax_stability", "minp_kl"}
SHARES = (1 / 4, 1 / 2)  # of full depth
RELEVANT = 0.02  # nats per token: a smaller gain is no reason to use a criterion
POWER = 0.8
DOCUMENTS = (10, 30, 100, 300, 1000, 3000)


def judged(arena: pd.DataFrame) -> pd.DataFrame:
    """The gains over cost-matched exits with the columns `primary`, `room`, `error`, `least` and
    `verdict`.

    The primary family has the criteria `PRIMARY`, or all criteria where a table has none of them,
    each at the thresholds whose evaluations are nearest to `SHARES` of full depth. All other gains
    are exploratory. Each of the two families is judged as a whole (Holm), so each says something
    wrong with a probability of at most 5 %.

    `room` is the gain of the oracle over the same exits, NaN if not known; `error` the standard
    error of the gain; `least` the smallest gain that these documents show with probability `POWER`.
    Where `least` exceeds `RELEVANT` or `room`, a gain that is not shown says nothing.
    """
    is_regret = arena["reference"] == ORACLE
    gains = arena[~is_regret].reset_index(drop=True)
    regrets = arena[is_regret]
    of_oracle = regrets[[*OPERATING_POINT, "gain"]]
    points = gains[OPERATING_POINT].merge(of_oracle, how="left", on=OPERATING_POINT)
    gains["room"] = gains["gain"] - points["gain"]
    primary = _primary(gains, regrets)
    gains["primary"] = gains.index.isin(primary)
    families = [_with_verdicts(rows) for _, rows in gains.groupby("primary")]
    return pd.concat(families or [_with_verdicts(gains)]).sort_index()


def _primary(gains: pd.DataFrame, regrets: pd.DataFrame) -> set[int]:
    """Labels of the gains in the primary family."""
    depth = regrets.loc[regrets["criterion"] == "fixed", "threshold"].max()
    if np.isnan(depth):  # no oracle
        depth = gains["evaluations"].max()
    published = gains["criterion"].str.removeprefix("direction_").isin(PRIMARY)
    family = gains[published] if published.any() else gains
    chosen = set()
    for _, rows in family.groupby(["criterion", "reference"]):
        for share in SHARES:
            distance = (rows["evaluations"] - share * depth).abs()
            chosen.add(distance.idxmin())
    return chosen


def _with_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Gains of one family with `room`, and then `error`, `least` and `verdict` (see `judged`)."""
    names = ["effective_documents", "gain", "gain_low", "gain_high", "room"]
    documents, gain, low, high, room = rows[names].to_numpy(np.float64).T
    freedom = np.maximum(1.0, documents - 1)
    is_gain = gain > 0
    # the standard error, from the end of the interval on the side of 0, which decides
    half = np.where(is_gain, gain - low, high - gain)
    error = half / _quantiles(0.975, freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(gain == 0, 0, np.abs(gain) / error)  # Student's t
    p_values = []  # two-sided
    for t, degrees in zip(statistic, freedom, strict=True):
        p_values.append(2 * bootstrap.t_tail(t, degrees))
    is_shown = bootstrap.holm(np.nan_to_num(p_values, nan=1.0))
    # what would have been seen: the smallest gain that is shown with probability POWER
    least = error * _least_errors(len(rows), freedom)
    is_blind = least > np.fmin(room, RELEVANT)
    verdict = np.where(is_blind | np.isnan(low), UNKNOWN, NO_DIFFERENCE)
    shown = np.where(is_gain, BETTER, WORSE)
    verdict = np.where(is_shown, shown, verdict)
    return rows.assign(error=error, least=least, verdict=verdict)


def _quantiles(probability: float, freedom: np.ndarray) -> np.ndarray:
    """Quantiles of Student's t for degrees of freedom (n,): (n,)."""
    return np.array([bootstrap.t_quantile(probability, degrees) for degrees in freedom])


def _least_errors(family: int, freedom: np.ndarray) -> np.ndarray:
    """The smallest gain shown with probability `POWER`, in standard errors, first of a family."""
    return _quantiles(1 - 0.025 / max(1, family), freedom) + _quantiles(POWER, freedom)


def least_by_documents(family: pd.DataFrame) -> list[tuple[int, float]]:
    """Numbers of documents, and the smallest gain that they show.

    The median over a family of gains with verdicts.
    """
    of_one = family["error"] * np.sqrt(family["effective_documents"])  # error of a single document
    freedom = np.array(DOCUMENTS, dtype=np.float64) - 1
    least = of_one.median() / np.sqrt(DOCUMENTS) * _least_errors(len(family), freedom)
    return list(zip(DOCUMENTS, least, strict=True))


def summary(arena: pd.DataFrame) -> str:
    """One sentence for each family and kind of cost-matched exits: which criteria are better."""
    gains, sentences = judged(arena), []
    for is_exploratory, rows in gains.groupby(~gains["primary"]):
        for reference, name in COST_MATCHED.items():
            start = f"Compared with {name} of the same cost"
            if is_exploratory:
                start = f"Exploratory, compared with {name}"
            of_reference = rows[rows["reference"] == reference]
            sentences.append(f"{start}: {_by_verdict(of_reference, not is_exploratory)}.")
    return " ".join(sentences) or "No criterion was compared."


def _by_verdict(rows: pd.DataFrame, is_primary: bool) -> str:
    """The criteria with each verdict; of exploratory gains only what is shown."""
    found: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for criterion, of_criterion in rows.groupby("criterion", sort=False):
        name = criterion.replace("_", " ")
        is_better = of_criterion["verdict"] == BETTER
        most = of_criterion["gain"][is_better].max()
        if not np.isnan(most):
            name += f" (by up to {number(most)} nats per token)"
        verdict = _verdict_of(set(of_criterion["verdict"]))
        found[verdict].append(name)
    said = VERDICTS if is_primary else (BETTER, BOTH, WORSE)
    listed = []
    for verdict in said:
        if found[verdict]:
            at = f" at {rows['documents'].max()} documents" if verdict == UNKNOWN else ""
            names = ", ".join(found[verdict])
            listed.append(f"{verdict}{at}: {names}")
    return "; ".join(listed) or f"no difference is shown in {len(rows)} gains"


def _verdict_of(verdicts: set[str]) -> str:
    """The verdict on a criterion, from those at its thresholds."""
    if {BETTER, WORSE} <= verdicts:
        return BOTH
    return next(verdict for verdict in VERDICTS if verdict in verdicts)


# --- page -----------------------------------------------------------------------------------------


def page(arena: pd.DataFrame, halves: tuple[Estimate, Estimate], values: Mapping[str, Any]) -> str:
    """Markdown of the table "arena" and of its `reliability`.

    `values` name the run, the text and their sizes.
    """
    gains, regret = judged(arena), arena[arena["reference"] == ORACLE]
    # estimates for the template; a regret is a negative gain, without the sign of zero
    ends = {"gain": "value", "gain_low": "low", "gain_high": "high"}
    turned = 0 - regret[[*ends]].rename(columns={"gain_low": "gain_high", "gain_high": "gain_low"})
    shown = gains.rename(columns=ends)
    return render(
        "studies/arena/arena.md.j2",
        **values,
        summary=summary(arena),
        documents=gains["documents"].max() if len(gains) else 0,
        references=COST_MATCHED,
        primary=list(shown[shown["primary"]].itertuples()),
        exploratory=list(shown[~shown["primary"]].itertuples()),
        least=least_by_documents(gains[gains["primary"]]),
        regrets=list(regret.assign(**turned).rename(columns=ends).itertuples()),
        halves=halves,
    )


# --- figure: gains --------------------------------------------------------------------------------

SURE: style.Look = {"marker": "o", "markersize": 4, "linestyle": ""}
UNSURE: style.Look = SURE | {"markerfacecolor": "white", "markersize": 2.5, "markeredgewidth": 0.7}
TOO_SMALL: style.Look = {"color": "0.93", "linewidth": 0, "zorder": -2}
ROOM: style.Look = {"color": style.BLACK, "linestyle": (0, (5, 2)), "linewidth": 0.8}


@style.look()
def draw_arena(arena: pd.DataFrame, *, context: style.FigureContext) -> Figure:
    """Gain in nats against mean evaluations (i) over random exits, (ii) over fixed loops.

    One line per exit criterion with a point per threshold, filled where a difference from 0 is
    shown. The criteria of the paper and of the user are in colour, the others grey. Gains in the
    grey area are too small for these documents to show. The dashed line is the gain of the oracle
    over fixed loops, mean over groups, at each count.

    Raises InputError for a table without criteria.
    """
    gains = judged(arena)
    style.check_rows("arena", gains)
    colours = style.criterion_colours(gains["criterion"])
    figure = style.new_figure(style.DOUBLE, 3.0, context)
    panels = figure.subplots(1, len(COST_MATCHED), sharex=True, sharey=True)
    for place, (reference, name) in enumerate(COST_MATCHED.items()):
        draw_gains(panels[place], arena, reference, colours)
        style.name_panel(panels[place], place + 1, f"gain over {name}")
        panels[place].set_xlabel("evaluations per token and group (mean, log scale)")
    panels[0].set_ylabel(f"cross-entropy saved (nats/token)\nlinear within ±{style.LINEAR_NATS:g}")
    lines: dict[str, Line2D | Patch] = {}
    for name, colour in colours.items():
        if colour != style.OTHERS:
            lines[criterion_name(name)] = Line2D([], [], color=colour)
    others = list(colours.values()).count(style.OTHERS)
    if others:
        lines[f"{others} other criteria"] = Line2D([], [], color=style.OTHERS)
    looks = {"difference shown": SURE, "not shown": UNSURE, "the oracle, over fixed loops": ROOM}
    for name, look in looks.items():
        lines[name] = Line2D([], [], **{"color": style.GREY, **look})
    lines["too small to be shown"] = Patch(**TOO_SMALL)
    style.legend_above(figure, lines, min(len(lines), 4))
    return figure


def draw_gains(axes: Axes, arena: pd.DataFrame, reference: str, colours: Mapping[str, str]) -> None:
    """Gains over one kind of cost-matched exits against mean evaluations.

    Criteria without a colour are left out.
    """
    gains = judged(arena).sort_values("evaluations", kind="stable")
    is_drawn = gains["criterion"].isin(list(colours))
    gains = gains[is_drawn & (gains["reference"] == reference)]
    for criterion, rows in gains.groupby("criterion", sort=False):
        colour = colours[criterion]
        look: style.Look = {"linewidth": 0.8, "zorder": 0}
        if colour == style.OTHERS:
            look = {"linewidth": 0.5, "zorder": -1}
        axes.plot(rows["evaluations"], rows["gain"], color=colour, **look)
        sure = rows["verdict"].isin((BETTER, WORSE))
        for points, look in ((rows[~sure], UNSURE), (rows[sure], SURE)):
            axes.plot(points["evaluations"], points["gain"], color=colour, **look)
    _name_best(axes, gains, colours)
    # the grey area, from the median of the points in each of eight bins of the axis
    most = max(2, gains["evaluations"].max())
    bins = np.geomspace(1, most * 1.001, 9)
    by_bin = gains.groupby(np.digitize(gains["evaluations"], bins))
    least = by_bin[["evaluations", "least"]].median()
    axes.fill_between(least["evaluations"], -least["least"], least["least"], **TOO_SMALL)
    # a regret of fixed loops is what the oracle gains over them
    regrets = arena[arena["reference"] == ORACLE]
    fixed = regrets[regrets["criterion"] == "fixed"].sort_values("threshold")
    axes.plot(fixed["threshold"], -fixed["gain"], **ROOM)
    axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=-1)
    _scale(axes)


def _name_best(axes: Axes, gains: pd.DataFrame, colours: Mapping[str, str]) -> None:
    """Name the largest gain that is shown if its line is one of the grey ones."""
    shown = gains[gains["verdict"] == BETTER].sort_values("gain")
    if shown.empty:
        return
    best = shown.iloc[-1]
    if colours[best["criterion"]] == style.OTHERS:
        axes.annotate(
            criterion_name(best["criterion"]),
            xy=(best["evaluations"], best["gain"]),
            xytext=(4, 4),
            textcoords="offset points",
            color=style.OTHERS,
        )


def _scale(axes: Axes) -> None:
    """Costs on a logarithmic axis, nats on one that is linear around 0."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    style.scale_nats(axes)


# --- figure: Pareto -------------------------------------------------------------------------------

# x axis of each panel: column -> title, label
COSTS = {
    "latency_ms": ("(i)  quality against latency", "latency (ms/token, log scale)"),
    "loops": ("(ii)  quality against loops", "evaluations per token and group (mean, log scale)"),
}
FIXED: style.Look = {
    "color": style.BLACK,
    "linestyle": (0, (5, 2)),
    "linewidth": 1,
    "marker": "|",
    "markersize": 5,
}
LINE: style.Look = {"markersize": 3.5, "linewidth": 1.2}
FRONTIER: style.Look = {"color": "0.8", "linewidth": 3, "solid_joinstyle": "round", "zorder": 0}


@style.look()
def draw_pareto(
    exit_latency: pd.DataFrame,
    exit_quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    *,
    context: style.FigureContext,
) -> Figure:
    """Two panels, quality over (i) latency and (ii) mean loops, one line per exit criterion.

    A line runs along the thresholds. The criteria of the paper and those of the user are in
    colour, with 95 % intervals over documents. The broad grey line is the frontier of all other
    criteria: their points that no other of them beats in both quantities. Quality is the
    cross-entropy minus that of `fixed` at all `context.loops` loop steps. Raises InputError for a
    table without rows.
    """
    style.check_rows("exit_latency", exit_latency)
    style.check_rows("exit_quality", exit_quality)
    times = summarise_latency(exit_latency)[[*OPERATING_POINT, "latency_ms"]]
    points = summarise_quality(exit_quality, exit_loops, context.loops)
    points = points.merge(times, on=OPERATING_POINT).sort_values("threshold")
    is_full = (points["criterion"] == "fixed") & (points["threshold"] == context.loops)
    full = points.loc[is_full, "ce"].item()
    points["excess"] = points["ce"] - full
    colours = style.criterion_colours(exit_quality["criterion"])
    others = [name for name, colour in colours.items() if colour == style.OTHERS]
    coloured = style.criterion_styles(name for name in colours if name not in others)
    styles = {name: look | LINE for name, look in coloured.items()}
    figure = style.new_figure(style.DOUBLE, 2.9, context)
    panels = figure.subplots(1, len(COSTS), sharey=True)
    of_others = points[points["criterion"].isin(others)]
    for axes, (column, (title, label)) in zip(panels, COSTS.items(), strict=True):
        axes.plot(*frontier(of_others[column], of_others["excess"]), **FRONTIER)
        for criterion, look in {"fixed": FIXED, **styles}.items():
            rows = points[points["criterion"] == criterion]
            below = rows["ce"] - rows["low"]
            above = rows["high"] - rows["ce"]
            bars = np.maximum([below, above], 0)
            axes.errorbar(rows[column], rows["excess"], yerr=bars, elinewidth=0.6, **look)
        axes.axhline(0, color=style.GREY, linewidth=0.6, zorder=0)
        _scale(axes)
        axes.set_xlabel(label)
        axes.set_title(title, loc="left")
    scale = f"(nats/token, linear within ±{style.LINEAR_NATS:g})"
    panels[0].set_ylabel(f"cross-entropy above that of {context.loops} loops\n{scale}")
    handles = {criterion_name(name): Line2D([], [], **look) for name, look in styles.items()}
    handles["fixed loops"] = Line2D([], [], **FIXED)
    if others:
        handles[f"best of {len(others)} other criteria"] = Line2D([], [], **FRONTIER)
    style.legend_above(figure, handles, min(len(handles), 5))
    return figure


def frontier(cost: pd.Series, excess: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Cost and excess of the points that no other point beats, from low to high cost."""
    order = np.lexsort((excess, cost))
    costs = cost.to_numpy()[order]
    excesses = excess.to_numpy()[order]
    before = np.concatenate([[np.inf], excesses[:-1]])
    is_best = excesses < np.minimum.accumulate(before)
    return costs[is_best], excesses[is_best]
