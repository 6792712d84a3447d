"""Value of the exits of a criterion: gains over cost-matched exits, and regret against oracles.

A gain is read in two ways. In nats: how much lower the cross-entropy is than the reference's at the same
evaluations. In evaluations: how many fewer a criterion takes than the reference at the same cross-entropy, on the
curve of the reference over the thresholds of the criterion. The regret is the negative gain over the budget oracle.

Units of resampling are documents. A criterion and its references are resampled together. NumPy and pandas only.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import OPERATING_POINT, mean_evaluations
from twoscale.claims.evidence import Estimate

ALL_GROUPS = "all"
ORACLE = "oracle"
COST_MATCHED = ("random", "fixed")
# Sums over the documents of R samples (R, ...) -> one number each (R,).
Statistic = Callable[[np.ndarray], np.ndarray]


def summarise(
    quality: pd.DataFrame,
    exit_loops: pd.DataFrame,
    cost_matched: pd.DataFrame,
    regret: pd.DataFrame,
    frontier: pd.DataFrame,
    seed: int = 0,
) -> pd.DataFrame:
    """The table "arena" without its column `run`: every criterion against its cost-matched exits and the budget oracle.

    Args:
        quality: Table "exit_quality".
        exit_loops: Table "exit_loops".
        cost_matched: Table "exit_cost_matched" of the same text.
        regret: Table "exit_regret".
        frontier: Table "oracle_frontier".
        seed: Of the bootstrap.
    """
    rows = [*_gains(quality, exit_loops, cost_matched, seed), *_regrets(regret, frontier, seed)]
    return pd.DataFrame(rows, columns=[name for name in tables.columns("arena") if name != "run"])


def estimate(statistic: Statistic, units: np.ndarray, tokens: np.ndarray, seed: int) -> Estimate:
    """A statistic of the sums over documents, with its interval: units (documents, ...) with `tokens` (documents,).

    Without an interval where there is one document or where the statistic of a sample is undefined.
    """
    value = float(statistic(units.sum(axis=0)[None])[0])
    if len(units) < 2 or np.isnan(value):
        return Estimate(value)
    samples = statistic(bootstrap.totals(units, seed))
    if not np.isfinite(samples).all():
        return Estimate(value)
    effective = bootstrap.effective_number(tokens)
    low, high = bootstrap.interval_about(value, samples, effective)
    return Estimate(value, low, high, freedom=effective - 1, units=len(units), effective=effective)


# --- cost-matched exits -----------------------------------------------------------------------------------------


def _gains(quality: pd.DataFrame, exit_loops: pd.DataFrame, cost_matched: pd.DataFrame, seed: int) -> Iterator[dict]:
    """Rows of the table "arena" for the cost-matched exits of every criterion that has some."""
    keys = [*OPERATING_POINT, "sequence"]
    measured = quality.join(mean_evaluations(exit_loops, keys), on=keys).rename(columns={"loops": "evaluations"})
    for criterion, of_criterion in cost_matched.groupby("criterion", sort=False):
        own = measured[measured["criterion"] == criterion]
        for reference in COST_MATCHED:
            matched = of_criterion[of_criterion["reference"] == reference]
            beside = matched.groupby(keys)[["evaluations", "ce"]].mean()  # over draws
            joined = own.join(beside.add_suffix("_reference"), on=keys)
            point = {"criterion": criterion, "group": ALL_GROUPS, "reference": reference}
            yield from (point | row for row in _of_thresholds(joined, seed))


def _of_thresholds(joined: pd.DataFrame, seed: int) -> Iterator[dict]:
    """One row per threshold of a criterion, from rows per sequence with the columns of its reference."""
    thresholds = sorted(joined["threshold"].unique())
    columns = ["evaluations", "ce", "evaluations_reference", "ce_reference"]
    sums = joined[columns].mul(joined["tokens"], axis="index").assign(tokens=joined["tokens"])
    by_point = sums.groupby([joined["document"], joined["threshold"]]).sum().unstack("threshold")
    # (documents, thresholds, 5)
    units = np.stack([by_point[name][thresholds].to_numpy() for name in (*columns, "tokens")], axis=-1)
    tokens = units[:, 0, 4]
    for place, threshold in enumerate(thresholds):
        evaluations, ce = units[:, place, :2].sum(axis=0) / units[:, place, 4].sum()
        row = {"threshold": threshold, **_documents(tokens), "evaluations": evaluations, "ce": ce}
        gain = estimate(lambda totals, place=place: _gain(totals[:, place]), units, tokens, seed)  # type: ignore[misc]
        saved = estimate(lambda totals, place=place: _saved(totals, place), units, tokens, seed)  # type: ignore[misc]
        yield row | _columns("gain", gain) | _columns("saved", saved)


def _documents(tokens: np.ndarray) -> dict[str, float]:
    return {"documents": len(tokens), "effective_documents": bootstrap.effective_number(tokens)}


def _gain(totals: np.ndarray) -> np.ndarray:
    """Cross-entropy of the reference minus the criterion's: sums (R, 5) -> (R,)."""
    return (totals[:, 3] - totals[:, 1]) / totals[:, 4]


def _saved(totals: np.ndarray, place: int) -> np.ndarray:
    """Evaluations of the reference at the nats of a threshold, minus the criterion's: (R, P, 5) -> (R,)."""
    evaluations, ce, cost, quality = np.moveaxis(totals[..., :4] / totals[..., 4:], -1, 0)  # (R, P) each
    return cost_at(cost, quality, ce[:, place]) - evaluations[:, place]


def cost_at(cost: np.ndarray, ce: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Least cost at which a curve reaches a cross-entropy, interpolated linearly between its points.

    A point that is no better than a cheaper one is passed over, so the curve falls.

    Args:
        cost: Of each of P points in R samples, in any order (R, P).
        ce: Cross-entropy of each point (R, P).
        level: The cross-entropy to reach (R,).

    Returns:
        (R,); NaN where the level is above the cheapest point or below the lowest one.
    """
    order = np.lexsort((ce, cost), axis=1)
    cost, ce = np.take_along_axis(cost, order, axis=1), np.take_along_axis(ce, order, axis=1)
    ce = np.minimum.accumulate(ce, axis=1)
    found = np.where(level == ce[:, 0], cost[:, 0], np.nan)
    for left in range(cost.shape[1] - 1):
        above, below = ce[:, left], ce[:, left + 1]
        reached = (above > level) & (level >= below)
        share = np.divide(above - level, above - below, out=np.zeros_like(level), where=reached)
        found = np.where(reached, cost[:, left] + share * (cost[:, left + 1] - cost[:, left]), found)
    return found


def _columns(name: str, found: Estimate) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


# --- oracle -----------------------------------------------------------------------------------------------------


def _regrets(regret: pd.DataFrame, frontier: pd.DataFrame, seed: int) -> Iterator[dict]:
    """Rows of the table "arena" for the budget oracle: each group, and the mean of all groups."""
    if regret.empty:
        return
    groups, prices = list(regret["group"].unique()), np.sort(frontier["price"].unique())
    bought = _oracle_units(frontier, groups, prices)  # (documents, G, L, 2)
    one_kind = regret[regret["oracle"] == regret["oracle"].iloc[0]]  # both kinds repeat evaluations and nats
    for point, rows in one_kind.groupby(OPERATING_POINT, sort=False):
        spent = _criterion_units(rows, groups)  # (documents, G, 3)
        units = np.concatenate([spent, bought.reshape(*bought.shape[:2], -1)], axis=-1)
        for label, places in {ALL_GROUPS: slice(None), **{g: slice(i, i + 1) for i, g in enumerate(groups)}}.items():
            part = units[:, places]
            evaluations, ce = (part[..., :2].sum(axis=0) / part[..., 2:3].sum(axis=0)).mean(axis=0)
            row = dict(zip(OPERATING_POINT, point, strict=True)) | {"group": label, "reference": ORACLE}
            tokens = part[:, 0, 2]
            row |= _documents(tokens) | {"evaluations": evaluations, "ce": ce}
            gain = estimate(lambda totals: oracle_gain(*_of_oracle(totals), prices).mean(axis=1), part, tokens, seed)
            saved = estimate(lambda totals: oracle_saving(*_of_oracle(totals), prices).mean(axis=1), part, tokens, seed)
            yield row | _columns("gain", _never_positive(gain)) | _columns("saved", _never_positive(saved))


def _never_positive(found: Estimate) -> Estimate:
    """The gain over an oracle with an interval that ends at 0, which no sample passes."""
    return replace(found, low=np.minimum(found.low, 0), high=np.minimum(found.high, 0))


def _criterion_units(rows: pd.DataFrame, groups: list[str]) -> np.ndarray:
    """Sums over the tokens of each document and group of evaluations and nats, and the tokens: (documents, G, 3)."""
    sums = rows[["evaluations", "ce"]].mul(rows["tokens"], axis="index").assign(tokens=rows["tokens"])
    by_group = sums.groupby([rows["document"], rows["group"]]).sum().unstack("group")
    return np.stack([by_group[name][groups].to_numpy() for name in ("evaluations", "ce", "tokens")], axis=-1)


def _oracle_units(frontier: pd.DataFrame, groups: list[str], prices: np.ndarray) -> np.ndarray:
    """The same sums of the budget oracle at every price: (documents, G, L, 2)."""
    sums = frontier[["evaluations", "ce"]].mul(frontier["tokens"], axis="index")
    by_point = sums.groupby([frontier["document"], frontier["group"], frontier["price"]]).sum().unstack([1, 2])
    columns = pd.MultiIndex.from_product([groups, prices])
    parts = [by_point[name][columns].to_numpy() for name in ("evaluations", "ce")]
    return np.stack(parts, axis=-1).reshape(len(by_point), len(groups), len(prices), 2)


def _of_oracle(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sums (R, G, 3 + 2 L) -> means: evaluations and nats of the criterion (R, G), and of the oracle (R, G, L)."""
    means = totals / totals[..., 2:3]
    bought = means[..., 3:].reshape(*means.shape[:2], -1, 2)
    return means[..., 0], means[..., 1], bought[..., 0], bought[..., 1]


def oracle_gain(
    evaluations: np.ndarray, ce: np.ndarray, cost: np.ndarray, quality: np.ndarray, prices: np.ndarray
) -> np.ndarray:
    """Nats of the budget oracle minus a criterion's at the same evaluations, never above 0: (...).

    At each price the oracle has the least sum of nats and paid evaluations, so it bounds the nats of every choice of
    exits at the evaluations of the criterion from below; the best bound is that at the right price.

    Args:
        evaluations: Mean evaluations of the criterion (...).
        ce: Its mean cross-entropy (...).
        cost: Mean evaluations of the oracle at each price (..., L).
        quality: Its mean cross-entropy (..., L).
        prices: Nats per evaluation (L,).
    """
    return (quality + prices * (cost - evaluations[..., None]) - ce[..., None]).max(axis=-1)


def oracle_saving(
    evaluations: np.ndarray, ce: np.ndarray, cost: np.ndarray, quality: np.ndarray, prices: np.ndarray
) -> np.ndarray:
    """Evaluations of the budget oracle minus a criterion's at the same nats: arguments of `oracle_gain`."""
    bound = cost + (quality - ce[..., None]) / prices - evaluations[..., None]
    return np.maximum(bound.max(axis=-1), 1 - evaluations)  # every exit takes an evaluation


def convergence(regret: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The table "convergence" without its column `run`, from the table "exit_regret"."""
    rows = [
        dict(zip([*OPERATING_POINT, "oracle"], point, strict=True)) | _convergence(of_point, seed)
        for point, of_point in regret.groupby([*OPERATING_POINT, "oracle"], sort=False)
    ]
    return pd.DataFrame(rows, columns=[name for name in tables.columns("convergence") if name != "run"])


def _convergence(rows: pd.DataFrame, seed: int) -> dict[str, float]:
    """Columns of one row of the table "convergence"."""
    names = ["converged", "extra", "lost", "evaluations", "least"]
    sums = rows[names].mul(rows["tokens"], axis="index").assign(tokens=rows["tokens"])
    units = sums.groupby(rows["document"]).sum().to_numpy()  # (documents, 6)
    total, tokens = units.sum(axis=0), units[:, 5]
    found = {
        "unconverged": estimate(lambda sums: 1 - sums[:, 0] / sums[:, 5], units, tokens, seed),
        "extra": estimate(lambda sums: _ratio(sums[:, 1], sums[:, 0]), units, tokens, seed),
        "lost": estimate(lambda sums: _ratio(sums[:, 2], sums[:, 5] - sums[:, 0]), units, tokens, seed),
    }
    means = {"evaluations": total[3] / total[5], "least": total[4] / total[5]}
    return means | {column: value for name, one in found.items() for column, value in _columns(name, one).items()}


def _ratio(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(R,); NaN where there is nothing to take the mean of."""
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 1e-9)
