"""Gains of exits over exits of the same cost, and their regret against an oracle, with verdicts.

A gain is how many nats lower the cross-entropy is than the reference's at the same evaluations. The
regret is the negative gain over the budget oracle. Units of resampling are documents, and a
criterion and its references are resampled together.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import OPERATING_POINT, mean_evaluations
from twoscale.claims.evidence import Estimate
from twoscale.report.render import number

ORACLE = "oracle"
COST_MATCHED = {"random": "random exits", "fixed": "fixed loops"}
BETTER, WORSE = "better", "worse"
BOTH = "better or worse, depending on the threshold"
NO_DIFFERENCE, UNKNOWN = "no relevant difference", "cannot be judged"
# Sums over the documents of R samples (R, ...) -> P numbers each (R, P).
Statistic = Callable[[np.ndarray], np.ndarray]


# --- gains and regrets ----------------------------------------------------------------------------


def summarise(*inputs: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The table "arena" without its column `run`, from the tables `INPUTS`; `seed` of the
    bootstrap.
    """
    quality, exit_loops, cost_matched, regret, frontier = inputs
    rows = [*_gains(quality, exit_loops, cost_matched, seed), *_regrets(regret, frontier, seed)]
    return pd.DataFrame(rows, columns=[name for name in tables.columns("arena") if name != "run"])


def document_sums(rows: pd.DataFrame, columns: list[str], **by: list) -> np.ndarray:
    """Sums of columns over the tokens of each document, and the tokens: (documents, values of `by`
    …, columns + 1).

    `by` names keys with their values in order; `rows` have every combination in every document.
    """
    sums = rows[columns].mul(rows["tokens"], axis="index").assign(tokens=rows["tokens"])
    keys = [pd.Categorical(rows[name], values) for name, values in by.items()]
    total = sums.groupby([rows["document"], *keys], observed=True).sum().to_numpy(np.float64)
    return total.reshape(-1, *map(len, by.values()), len(columns) + 1)


def estimates(
    statistic: Statistic, units: np.ndarray, tokens: np.ndarray, seed: int
) -> list[Estimate]:
    """Statistics of the sums over documents, units (documents, ...), with intervals if there are
    two documents.
    """
    values = statistic(units.sum(axis=0)[None])[0]
    if len(units) < 2:
        return list(map(Estimate, values))
    samples, effective = (
        statistic(bootstrap.totals(units, seed)),
        bootstrap.effective_number(tokens),
    )
    return [
        Estimate(
            value,
            *bootstrap.interval_about(float(value), np.ascontiguousarray(of_value), effective),
        )
        for value, of_value in zip(values, samples.T, strict=True)
    ]


def _row(
    point: dict[str, Any], gain: Estimate, evaluations: float, ce: float, tokens: np.ndarray
) -> dict[str, Any]:
    documents = {
        "documents": len(tokens),
        "effective_documents": bootstrap.effective_number(tokens),
    }
    ends = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
    return point | documents | {"evaluations": evaluations, "ce": ce} | ends


def _gains(
    quality: pd.DataFrame, exit_loops: pd.DataFrame, cost_matched: pd.DataFrame, seed: int
) -> Iterator[dict]:
    """Rows of the table "arena" for the cost-matched exits of every criterion that has some."""
    keys = [*OPERATING_POINT, "sequence"]
    columns = ["evaluations", "ce", "evaluations_reference", "ce_reference"]
    measured = quality.join(mean_evaluations(exit_loops, keys), on=keys).rename(
        columns={"loops": "evaluations"}
    )
    for criterion, of_criterion in cost_matched.groupby("criterion", sort=False):
        own = measured[measured["criterion"] == criterion]
        thresholds = sorted(own["threshold"].unique())
        for reference in COST_MATCHED:
            matched = of_criterion[of_criterion["reference"] == reference]
            beside = matched.groupby(keys)[["evaluations", "ce"]].mean()  # over draws
            joined = own.join(beside.add_suffix("_reference"), on=keys)
            units = document_sums(
                joined, columns, threshold=thresholds
            )  # (documents, thresholds, 5)
            tokens = units[:, 0, 4]
            gains = estimates(
                lambda sums: (sums[..., 3] - sums[..., 1]) / sums[..., 4], units, tokens, seed
            )
            for place, (threshold, gain) in enumerate(zip(thresholds, gains, strict=True)):
                evaluations, ce = units[:, place, :2].sum(axis=0) / units[:, place, 4].sum()
                point = {"criterion": criterion, "threshold": threshold, "reference": reference}
                yield _row(point, gain, evaluations, ce, tokens)


def _regrets(regret: pd.DataFrame, frontier: pd.DataFrame, seed: int) -> Iterator[dict]:
    """Rows of the table "arena" for the budget oracle: means over the groups."""
    if regret.empty:
        return
    groups, prices = list(regret["group"].unique()), np.sort(frontier["price"].unique())
    bought = document_sums(frontier, ["evaluations", "ce"], group=groups, price=list(prices))[
        ..., :2
    ]  # (D, G, L, 2)

    def gain_of(sums: np.ndarray) -> np.ndarray:
        """`oracle_gain`, mean over groups, from sums (R, G, 3 + 2 L) -> (R, 1)."""
        means = sums / sums[..., 2:3]
        cost, quality = np.moveaxis(means[..., 3:].reshape(*means.shape[:2], -1, 2), -1, 0)
        return oracle_gain(means[..., 0], means[..., 1], cost, quality, prices).mean(
            axis=1, keepdims=True
        )

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
    return (quality + prices * (cost - evaluations[..., None]) - ce[..., None]).max(axis=-1)


def reliability(table: pd.DataFrame, seed: int = 0) -> tuple[Estimate, Estimate]:
    """Correlation of a token's best odd with its best even depth, and with that of other tokens;
    mean over groups.

    The first is the split-half reliability of the oracle's choices: 0 if they follow noise.
    """
    names, groups = (
        ["odd", "even", "odd_odd", "even_even", "odd_even", "odd_other"],
        list(table["group"].unique()),
    )
    units = document_sums(table, names, group=groups)  # (documents, groups, 7)

    def correlations(sums: np.ndarray) -> np.ndarray:
        """(R, groups, 7) -> (R, 2)."""
        odd, even, odd_odd, even_even, *products = np.moveaxis(sums[..., :6] / sums[..., 6:], -1, 0)
        spread = np.sqrt((odd_odd - odd**2) * (even_even - even**2))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.stack(
                [((product - odd * even) / spread).mean(axis=1) for product in products], axis=-1
            )

    same, other = estimates(correlations, units, units[:, 0, 6], seed)
    return same, other


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
    gains, regrets = arena[~is_regret].reset_index(drop=True), arena[is_regret]
    depth = regrets.loc[regrets["criterion"] == "fixed", "threshold"].max()
    depth = gains["evaluations"].max() if np.isnan(depth) else depth
    of_primary = gains["criterion"].str.removeprefix("direction_").isin(PRIMARY)
    family = gains[of_primary] if of_primary.any() else gains
    chosen = {
        (rows["evaluations"] - share * depth).abs().idxmin()
        for _, rows in family.groupby(["criterion", "reference"])
        for share in SHARES
    }
    regret = gains[OPERATING_POINT].merge(
        regrets[[*OPERATING_POINT, "gain"]], how="left", on=OPERATING_POINT
    )["gain"]
    gains = gains.assign(primary=gains.index.isin(chosen), room=gains["gain"] - regret)
    return pd.concat(
        [with_verdicts(rows) for _, rows in gains.groupby("primary")] or [with_verdicts(gains)]
    ).sort_index()


def with_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Gains of one family with a column `room`, and then `error`, `least` and `verdict` (see
    `judged`).
    """
    freedom = np.maximum(1.0, rows["effective_documents"].to_numpy(np.float64) - 1)
    gain, low, high, room = (
        rows[name].to_numpy(np.float64) for name in ("gain", "gain_low", "gain_high", "room")
    )
    # from the end of the interval on the side of 0, which decides
    error = np.where(gain > 0, gain - low, high - gain) / _quantiles(0.975, freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(gain == 0, 0, np.abs(gain) / error)
    tails = np.array([2 * bootstrap.t_tail(*pair) for pair in zip(statistic, freedom, strict=True)])
    is_shown = bootstrap.holm(np.nan_to_num(tails, nan=1.0))
    least = error * _least_errors(len(rows), freedom)
    verdict = np.where(least > np.fmin(room, RELEVANT), UNKNOWN, NO_DIFFERENCE)
    verdict = np.where(
        is_shown, np.where(gain > 0, BETTER, WORSE), np.where(np.isnan(low), UNKNOWN, verdict)
    )
    return rows.assign(error=error, least=least, verdict=verdict)


def _quantiles(probability: float, freedom: np.ndarray) -> np.ndarray:
    return np.array([bootstrap.t_quantile(probability, degrees) for degrees in freedom])


def _least_errors(family: int, freedom: np.ndarray) -> np.ndarray:
    """The smallest gain that is shown with probability `POWER`, in standard errors, as the first of
    a family.
    """
    return _quantiles(1 - 0.025 / max(1, family), freedom) + _quantiles(POWER, freedom)


def least_by_documents(family: pd.DataFrame) -> list[tuple[int, float]]:
    """Numbers of documents with the smallest gain that they show, the median over a family of gains
    with verdicts.
    """
    of_one = family["error"] * np.sqrt(
        family["effective_documents"]
    )  # standard error of a single document
    freedom = np.array(DOCUMENTS, dtype=np.float64) - 1
    return list(
        zip(
            DOCUMENTS,
            of_one.median() / np.sqrt(DOCUMENTS) * _least_errors(len(family), freedom),
            strict=True,
        )
    )


def summary(arena: pd.DataFrame) -> str:
    """One sentence for each family and kind of cost-matched exits: which criteria are better, by
    how much at most.
    """
    gains, sentences = judged(arena), []
    for family, rows in gains.groupby(~gains["primary"]):
        for reference, name in COST_MATCHED.items():
            listed = _by_verdict(rows[rows["reference"] == reference], is_primary=not family)
            start = (
                f"Exploratory, compared with {name}"
                if family
                else f"Compared with {name} of the same cost"
            )
            sentences.append(f"{start}: {listed}.")
    return " ".join(sentences) or "No criterion was compared."


def _by_verdict(rows: pd.DataFrame, is_primary: bool) -> str:
    """The criteria with each verdict; of exploratory gains only what is shown."""
    found: dict[str, list[str]] = {
        verdict: [] for verdict in (BETTER, BOTH, WORSE, NO_DIFFERENCE, UNKNOWN)
    }
    for criterion, of_criterion in rows.groupby("criterion", sort=False):
        words = set(of_criterion["verdict"])  # over all thresholds together
        word = (
            BOTH
            if {BETTER, WORSE} <= words
            else next(verdict for verdict in found if verdict in words)
        )
        most = of_criterion.loc[of_criterion["verdict"] == BETTER, "gain"].max()
        by = "" if np.isnan(most) else f" (by up to {number(most)} nats per token)"
        found[word].append(criterion.replace("_", " ") + by)
    shown = [
        word
        for word, names in found.items()
        if names and (is_primary or word in (BETTER, BOTH, WORSE))
    ]
    said = {UNKNOWN: f"{UNKNOWN} at {rows['documents'].max()} documents"} if len(rows) else {}
    listed = "; ".join(f"{said.get(word, word)}: {', '.join(found[word])}" for word in shown)
    return listed or f"no difference is shown in {len(rows)} gains"
