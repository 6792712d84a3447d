"""Gains of exits over exits of the same cost, and their regret against an oracle, with verdicts.

A gain is how many nats lower the cross-entropy is than the reference's at the same evaluations. The
regret is the negative gain over the budget oracle. Units of resampling are documents, and a
criterion and its references are resampled together.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.claims.bootstrap import Statistic, document_sums
from twoscale.claims.estimates import Estimate
from twoscale.config.criteria import FACTS
from twoscale.exits.references import RANDOM
from twoscale.exits.table import OPERATING_POINT, document_units, operating_points
from twoscale.report.render import number

ORACLE = "oracle"
COST_MATCHED = {"random": "random exits", "fixed": "fixed loops"}
BETTER, WORSE = "better", "worse"
BOTH = "better or worse, depending on the threshold"
NO_DIFFERENCE, UNKNOWN = "no relevant difference", "cannot be judged"
VERDICTS = (BETTER, BOTH, WORSE, NO_DIFFERENCE, UNKNOWN)


# --- gains and regrets ----------------------------------------------------------------------------


def summarise(
    exits: pd.DataFrame, regret: pd.DataFrame, frontier: pd.DataFrame, seed: int = 0
) -> pd.DataFrame:
    """The table "arena" without its column `run`, from the table of exits and those of the oracle.

    `seed` is that of the bootstrap.
    """
    rows = [*_gains(exits, seed), *_regrets(regret, frontier, seed)]
    return pd.DataFrame(rows, columns=[name for name in tables.columns("arena") if name != "run"])


def estimates(
    statistic: Statistic, units: np.ndarray, tokens: np.ndarray, seed: int
) -> list[Estimate]:
    """`bootstrap.estimates`, as numbers with their intervals."""
    return [Estimate(*found) for found in bootstrap.estimates(statistic, units, tokens, seed)]


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


def _gains(exits: pd.DataFrame, seed: int) -> Iterator[dict]:
    """Rows of the table "arena" for the cost-matched exits of every criterion that has some."""
    of_criteria: dict[str, list[float]] = {}
    for criterion, threshold in operating_points(exits, RANDOM):
        of_criteria.setdefault(criterion, []).append(threshold)
    for criterion, thresholds in of_criteria.items():
        points = [(criterion, threshold) for threshold in sorted(thresholds)]
        own = document_units(exits, points)  # (D, P, 3): nats, evaluations, tokens
        # the same at every threshold
        tokens = own[:, 0, 2]
        means = own.sum(axis=0) / tokens.sum()
        for reference in COST_MATCHED:
            matched = document_units(exits, points, reference=reference)
            gains = estimates(_mean_gain, np.concatenate([own, matched], axis=-1), tokens, seed)
            for (_, threshold), (ce, evaluations, _), gain in zip(
                points, means, gains, strict=True
            ):
                yield _row(criterion, threshold, reference, gain, evaluations, ce, tokens)


def _mean_gain(sums: np.ndarray) -> np.ndarray:
    """Nats of the reference minus the criterion's, per token: sums (R, P, 6) -> (R, P)."""
    return (sums[..., 3] - sums[..., 0]) / sums[..., 2]


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
        # evaluations, nats, tokens, and then evaluations and nats at each price in turn
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
        units = np.concatenate([spent, bought], axis=-1)  # (D, G, 3 + 2 L)
        tokens = units[:, 0, 2]  # the same in every group
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
    # the Lagrangian bound: exits of mean cost c lose at least quality(p) + p (cost(p) - c) at any p
    bounds = quality + prices * (cost - evaluations[..., None])  # of the nats, at each price
    return (bounds - ce[..., None]).max(axis=-1)


def reliability(halves: pd.DataFrame, seed: int = 0) -> tuple[Estimate, Estimate]:
    """Correlation of the odd with the even depth that a token needs, and with that of other tokens.

    Both are means over groups; `replay.oracle.split_half` gives the depths. The first is the
    split-half reliability of the oracle's choices: 0 if they follow noise.
    """
    names = ["odd", "even", "odd_odd", "even_even", "odd_even", "odd_other"]
    units = document_sums(halves, names, group=list(halves["group"].unique()))  # (D, G, 7)
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
PRIMARY = {name for name, facts in FACTS.items() if facts.is_primary}
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
    regrets = arena.loc[is_regret, [*OPERATING_POINT, "gain"]]
    depth = _depth(arena)

    # primary: of each criterion the thresholds nearest to the shares of full depth
    of_primary = gains["criterion"].str.removeprefix("direction_").isin(PRIMARY)
    candidates = gains[of_primary] if of_primary.any() else gains
    chosen = set()
    for _, rows in candidates.groupby(["criterion", "reference"]):
        for share in SHARES:
            distance = (rows["evaluations"] - share * depth).abs()
            chosen.add(distance.idxmin())

    # the oracle's gain over the same exits: the criterion's over them, minus its over the oracle
    regret = gains[OPERATING_POINT].merge(regrets, how="left", on=OPERATING_POINT)["gain"]
    gains = gains.assign(primary=gains.index.isin(chosen), room=gains["gain"] - regret)
    # Holm's correction is within a family
    families = [with_verdicts(rows) for _, rows in gains.groupby("primary")]
    return pd.concat(families or [with_verdicts(gains)]).sort_index()


def _depth(arena: pd.DataFrame) -> float:
    """Full depth: the largest fixed count, or the most evaluations where no oracle was measured."""
    fixed = arena.loc[arena["criterion"] == "fixed", "threshold"].max()
    return arena["evaluations"].max() if np.isnan(fixed) else fixed


def with_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Gains of one family with `room`, and then `error`, `least` and `verdict` (see `judged`)."""
    documents = rows["effective_documents"].to_numpy(np.float64)
    freedom = np.maximum(1.0, documents - 1)
    gain = rows["gain"].to_numpy(np.float64)
    low = rows["gain_low"].to_numpy(np.float64)
    high = rows["gain_high"].to_numpy(np.float64)
    # the standard error, from the end of the interval on the side of 0, which decides
    half_width = np.where(gain > 0, gain - low, high - gain)
    error = half_width / _quantiles(0.975, freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(gain == 0, 0, np.abs(gain) / error)  # Student's t
    tails = [bootstrap.t_tail(t, degrees) for t, degrees in zip(statistic, freedom, strict=True)]
    p_values = 2 * np.array(tails)  # two-sided
    is_shown = bootstrap.holm(np.nan_to_num(p_values, nan=1.0))
    # what would have been seen: the smallest gain that is shown with probability POWER
    least = error * _least_errors(len(rows), freedom)
    # `fmin` takes RELEVANT where the room is not known
    is_blind = least > np.fmin(rows["room"].to_numpy(np.float64), RELEVANT)
    verdict = np.where(is_blind | np.isnan(low), UNKNOWN, NO_DIFFERENCE)
    verdict = np.where(is_shown & (gain > 0), BETTER, verdict)
    verdict = np.where(is_shown & ~(gain > 0), WORSE, verdict)
    return rows.assign(error=error, least=least, verdict=verdict)


def _quantiles(probability: float, freedom: np.ndarray) -> np.ndarray:
    """Quantiles of Student's t for degrees of freedom (n,): (n,)."""
    return np.array([bootstrap.t_quantile(probability, degrees) for degrees in freedom])


def _least_errors(family: int, freedom: np.ndarray) -> np.ndarray:
    """The smallest gain shown with probability `POWER`, in standard errors, first of a family."""
    # Holm's first step tests at 5 % over the size of the family, two-sided; the second quantile is
    # the distance from there that gives the power
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


def ranking(arena: pd.DataFrame) -> str:
    """The criteria at equal cost, a quarter and a half of full depth, from the lowest loss.

    Between two thresholds the loss is that of tokens which take either of them at random.
    """
    # rows of all references have the loss of the criterion, so one reference is enough
    fixed = arena[arena["reference"] == "fixed"].sort_values("evaluations", kind="stable")
    sentences = []
    for cost in np.multiply(SHARES, _depth(arena)):
        losses = {}
        for criterion, rows in fixed.groupby("criterion", sort=False):
            taken = rows["evaluations"].to_numpy()
            # nothing is extrapolated
            if taken[0] <= cost <= taken[-1]:
                losses[criterion.replace("_", " ")] = np.interp(cost, taken, rows["ce"])
        if losses:
            ranked = sorted(losses.items(), key=lambda item: item[1])
            named = ", ".join(f"{name} {loss:.4g}" for name, loss in ranked)
            sentences.append(f"At {cost:.3g} evaluations, the losses in nats are: {named}.")
    return " ".join(sentences)


def _by_verdict(rows: pd.DataFrame, is_primary: bool) -> str:
    """The criteria with each verdict; of exploratory gains only what is shown."""
    found: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for criterion, of_criterion in rows.groupby("criterion", sort=False):
        named = criterion.replace("_", " ")
        most = of_criterion.loc[of_criterion["verdict"] == BETTER, "gain"].max()
        if not np.isnan(most):
            named += f" (by up to {number(most)} nats per token)"
        verdict = _verdict_of(set(of_criterion["verdict"]))
        found[verdict].append(named)

    named_verdicts = VERDICTS if is_primary else (BETTER, BOTH, WORSE)
    listed = []
    for verdict, names in found.items():
        if names and verdict in named_verdicts:
            at = f" at {rows['documents'].max()} documents" if verdict == UNKNOWN else ""
            listed.append(f"{verdict}{at}: {', '.join(names)}")
    return "; ".join(listed) or f"no difference is shown in {len(rows)} gains"


def _verdict_of(verdicts: set[str]) -> str:
    """The verdict on a criterion, from those at its thresholds."""
    if {BETTER, WORSE} <= verdicts:
        return BOTH
    return next(verdict for verdict in VERDICTS if verdict in verdicts)
