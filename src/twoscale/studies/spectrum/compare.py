"""Predictions from the spectrum of a loop compared with paths, and which tokens are slow.

Tokens count if they have exact blocks and a fixed point. Intervals are bootstraps over documents. NumPy and pandas
only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from twoscale import tables
from twoscale.claims import bootstrap
from twoscale.dynamics.aggregate import statistics

if TYPE_CHECKING:
    from twoscale.jobs.study_job import StudyJob

Column = Callable[[pd.DataFrame], pd.Series]

# Lower bounds of classes, in increasing order; a class reaches up to the next bound.
POSITIONS = (0, 1, 4, 16, 64, 256)
FREQUENCIES = (0, 10, 100, 1000, 10000)  # occurrences per million training tokens


def run(job: "StudyJob") -> None:
    """Write the tables "token_spectrum", "spectrum", "spectrum_metrics" and "slow_tokens"."""
    tokens, run, seed = job.files["tokens"], job.config.run, job.config.seed
    job.write("token_spectrum", tables.read("token_spectrum", tokens[-1]))
    job.write("spectrum", agreement(tokens, run, seed))
    job.write("spectrum_metrics", statistics(tokens, run, "token_spectrum", "spectrum_metrics"))
    job.write("slow_tokens", slow_tokens(tokens, run, seed))


def column(name: str) -> Column:
    return lambda tokens: tokens[name]


def cosine_of(name: str) -> Column:
    """The cosine of a column of angles: what successive updates have on a circular spiral."""
    return lambda tokens: np.cos(tokens[name])


# A path follows one eigenvalue if its two-term recurrence leaves less than this of it, relative.
RESOLVED = 0.1
LEAST, MOST = {"correlation": -1.0, "difference": 0.0}, {"correlation": 1.0, "difference": np.inf}

# (prediction, quantity) -> the predicted and the measured column.
COMPARISONS: dict[tuple[str, str], tuple[Column, Column]] = {
    ("leading", "rate"): (column("leading_modulus"), column("rate")),
    ("leading", "cosine"): (cosine_of("leading_angle"), column("cosine")),
    ("leading", "spiral"): (column("leading_spiral"), column("cosine")),
    ("prefix", "rate"): (column("prefix_modulus"), column("rate")),
    ("prefix", "cosine"): (cosine_of("prefix_angle"), column("cosine")),
    ("prefix", "spiral"): (column("prefix_spiral"), column("cosine")),
    ("path", "rate"): (column("prefix_modulus"), column("path_modulus")),
    ("path", "cosine"): (cosine_of("prefix_angle"), cosine_of("path_angle")),
    ("isolated", "rate"): (column("leading_modulus"), column("isolated_rate")),
    ("isolated", "cosine"): (cosine_of("leading_angle"), column("isolated_cosine")),
    ("isolated", "spiral"): (column("leading_spiral"), column("isolated_cosine")),
    ("slowed", "rate"): (column("slowed_modulus"), column("slowed_rate")),
    ("slowed", "cosine"): (cosine_of("slowed_angle"), column("slowed_cosine")),
}


# The same for tokens without a fixed point; "half" compares two loop steps.
DIRECTIONS: dict[tuple[str, str], tuple[Column, Column]] = {
    ("direction", "rate"): (column("direction_prefix_modulus"), column("direction_rate")),
    ("direction", "half"): (column("direction_modulus"), column("direction_half_modulus")),
}


# --- agreement -------------------------------------------------------------------------------------------------


def agreement(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "spectrum" from tables "token_spectrum", one per checkpoint."""
    rows = []
    for keys, tokens in _groups(paths):
        for (prediction, quantity), columns in COMPARISONS.items():
            rows_of = tokens[tokens["path_residual"] < RESOLVED] if prediction == "path" else tokens
            leading, _ = COMPARISONS[("leading", quantity)]
            rows.append(
                keys | {"prediction": prediction, "quantity": quantity} | _agreement(rows_of, *columns, leading, seed)
            )
    for keys, tokens in _groups(paths, fixed=False):
        for (prediction, quantity), columns in DIRECTIONS.items():
            found = _agreement(tokens, *columns, column("direction_modulus"), seed)
            rows.append(keys | {"prediction": prediction, "quantity": quantity} | found)
    return pd.DataFrame(rows, columns=list(tables.columns("spectrum"))).assign(run=run)


def _agreement(tokens: pd.DataFrame, predicted: Column, measured: Column, leading: Column, seed: int) -> dict:
    """Columns of one row of the table "spectrum" from `tokens` on."""
    values = pd.DataFrame({"predicted": predicted(tokens), "measured": measured(tokens)}).dropna()
    if values.empty:
        return {"tokens": 0}
    values = values.assign(leading=leading(tokens)).astype(np.float64)
    return compare(values.join(tokens["document"]), seed) | split(values.join(tokens[["sequence", "position"]]))


def compare(values: pd.DataFrame, seed: int) -> dict[str, float]:
    """Means, correlation and mean absolute difference with intervals: columns predicted, measured and document."""
    found = {"tokens": len(values), "predicted": values["predicted"].mean(), "measured": values["measured"].mean()}
    units = _units(values)
    for name, statistic in {"correlation": correlation, "difference": difference}.items():
        value = float(statistic(units[None])[0]) if len(units) else np.nan
        low, high = _interval(statistic, units, units[:, 0], value, seed)
        found |= {name: value, f"{name}_low": max(low, LEAST[name]), f"{name}_high": min(high, MOST[name])}
    return found


def split(values: pd.DataFrame) -> dict[str, float]:
    """Columns `within`, `placebo` and `nearer` of one row of the table "spectrum".

    values: columns predicted, measured, leading (what the leading eigenvalue predicts), sequence and position.
    """
    grids = (values.pivot(index="sequence", columns="position", values=name) for name in ("predicted", "measured"))
    predicted, measured = (grid.to_numpy() for grid in grids)  # (S, T) each, NaN where there is no token
    differing = values[values["predicted"] != values["leading"]]
    gaps = [(differing[name] - differing["measured"]).abs() for name in ("predicted", "leading")]
    return {
        "within": within_sequences(predicted, measured, shifts=[0]),
        "placebo": within_sequences(predicted, measured, shifts=range(1, len(predicted))),
        "nearer": (gaps[0] < gaps[1]).mean(),
    }


def within_sequences(predicted: np.ndarray, measured: np.ndarray, shifts: Sequence[int]) -> float:
    """Correlation about the means of each sequence, over tokens (S, T); NaN without variance.

    The measured values of a sequence are compared with the predictions of the sequences `shifts` places before it.
    """
    if not len(shifts):
        return np.nan
    x = np.concatenate([np.roll(predicted, shift, axis=0) for shift in shifts])
    y = np.tile(measured, (len(shifts), 1))
    x, y = (np.ma.array(values, mask=np.isnan(x + y)) for values in (x, y))
    # moduli and cosines are float32: what is left of equal values is rounding
    x, y = ((values - values.mean(axis=1, keepdims=True)).round(9) for values in (x, y))
    product, variances = (x * y).sum(), (x * x).sum() * (y * y).sum()
    return float(product / np.sqrt(variances)) if variances > 0 else np.nan


def _interval(
    statistic: bootstrap.Statistic, units: np.ndarray, tokens: np.ndarray, value: float, seed: int
) -> tuple[float, float]:
    """The interval of a statistic over documents with `tokens`; NaN if it, or its value in a sample, is undefined."""
    if len(units) < 2 or np.isnan(value):
        return np.nan, np.nan
    with np.errstate(invalid="ignore"):
        ends = bootstrap.interval(statistic, units, seed, tokens)
    return ends if np.isfinite(ends).all() else (np.nan, np.nan)


def _units(values: pd.DataFrame) -> np.ndarray:
    """Sums over the tokens of each document, (D, 7): 1, x, y, x², y², xy, |x − y|, with x and y about their means."""
    x, y = (values[name] - values[name].mean() for name in ("predicted", "measured"))
    terms = {"one": 1.0, "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
    terms["gap"] = (values["predicted"] - values["measured"]).abs()
    return pd.DataFrame(terms, index=values.index).groupby(values["document"]).sum().to_numpy(np.float64)


def correlation(samples: np.ndarray) -> np.ndarray:
    """Statistic: correlation over the tokens of sampled documents, (R, D, 7) -> (R,); NaN without variance."""
    one, x, y, xx, yy, xy, _ = np.moveaxis(samples.sum(axis=1), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (xy - x * y / one) / np.sqrt((xx - x * x / one) * (yy - y * y / one))


def difference(samples: np.ndarray) -> np.ndarray:
    """Statistic: mean absolute difference over the tokens of sampled documents, (R, D, 7) -> (R,)."""
    total = samples.sum(axis=1)
    return total[:, 6] / total[:, 0]


def summary(spectrum: pd.DataFrame) -> str:
    """Rates and angles in the table "spectrum" at its last checkpoint, in two sentences per group."""
    last = spectrum[spectrum["iteration"] == spectrum["iteration"].max()]
    return " ".join(_group_summary(group, rows) for group, rows in last.groupby("group", sort=False))


def _group_summary(group: str, rows: pd.DataFrame) -> str:
    of = rows.set_index(["prediction", "quantity"])
    label = f"Group {group.replace('-', '–')}, iteration {int(rows['iteration'].iloc[0])}"
    summaries = [_fixed_points(label, of)] if ("prefix", "rate") in of.index else []
    return " ".join(summaries or [_directions(label, of)])


def _fixed_points(label: str, of: pd.DataFrame) -> str:
    parts = [
        f"{quantity} {of.loc[('prefix', quantity), 'measured']:.2f}, prefix eigenvalue "
        f"{_predicted(of.loc[('prefix', quantity)])}, leading eigenvalue {_predicted(of.loc[('leading', quantity)])}"
        for quantity in ("rate", "cosine")
    ]
    tokens = int(of.drop("direction", level="prediction", errors="ignore")["tokens"].max())
    whose = _whose_rate(of.loc[("prefix", "rate")], of.loc[("leading", "rate")])
    return f"{label}, {tokens} tokens: {'; '.join(parts)}. {whose}"


def _directions(label: str, of: pd.DataFrame) -> str:
    """The map on directions of a group without fixed points, or why it has no spectrum."""
    half, rate = of.loc[("direction", "half")], of.loc[("direction", "rate")]
    if not half["tokens"]:
        return f"{label}: no token has a fixed point, and no direction has a limit, so there is no spectrum."
    return (
        f"{label}, {int(half['tokens'])} tokens without a fixed point whose directions have a limit: radius of the map "
        f"on directions {half['predicted']:.4f} ± {half['difference']:.4f}, the difference from half as many loop "
        f"steps; rate of the steps of directions {rate['measured']:.4f}."
    )


def _whose_rate(prefix: pd.Series, leading: pd.Series) -> str:
    """Whether rates follow the prefix eigenvalue: rows of the table "spectrum"."""
    return (
        f"Of the tokens for which the two differ, {prefix['nearer']:.0%} have a rate nearer to the prefix eigenvalue; "
        f"within sequences the rate correlates with it by {prefix['within']:.2f}, with the leading eigenvalue by "
        f"{leading['within']:.2f}, with the prefix eigenvalue of other sequences by {prefix['placebo']:.2f}."
    )


def _predicted(row: pd.Series) -> str:
    return f"{row['predicted']:.2f} (correlation over tokens {row['correlation']:.2f})"


# --- slow tokens -----------------------------------------------------------------------------------------------


def slow_tokens(paths: Iterable[str | Path], run: str, seed: int) -> pd.DataFrame:
    """The table "slow_tokens" from tables "token_spectrum", one per checkpoint."""
    rows = []
    for keys, tokens in _groups(paths):
        for name, classes in classify(tokens).items():
            labelled = tokens.assign(its_class=classes)
            of_source = labelled.set_index(["sequence", "position"])["its_class"]
            sources = of_source.reindex(pd.MultiIndex.from_frame(tokens[["sequence", "source"]])).to_numpy()
            for label, members in labelled.groupby("its_class", observed=True, sort=True):
                share = _share(tokens["document"], sources == label, seed)
                rows.append(keys | {"property": name, "class": str(label)} | _described(members, tokens) | share)
    return pd.DataFrame(rows, columns=list(tables.columns("slow_tokens"))).assign(run=run)


def classify(tokens: pd.DataFrame) -> dict[str, pd.Series]:
    """Property -> the class of each token; frequency only where it is known."""
    classes = {
        "token_class": tokens["token_class"].astype("category"),
        "position": _bins(tokens["position"], POSITIONS),
    }
    if tokens["frequency"].notna().all():
        classes["frequency"] = _bins(tokens["frequency"], FREQUENCIES)
    return classes


def _bins(values: pd.Series, bounds: tuple[int, ...]) -> pd.Series:
    labels = [f"{low} to {high}" for low, high in pairwise(bounds)] + [f"from {bounds[-1]}"]
    return pd.cut(values, [*bounds, np.inf], right=False, labels=labels)


def _described(members: pd.DataFrame, tokens: pd.DataFrame) -> dict[str, float]:
    return {
        "tokens": len(members),
        "share": len(members) / len(tokens),
        "leading_modulus": members["leading_modulus"].astype(np.float64).mean(),
    }


def _share(documents: pd.Series, is_member: np.ndarray, seed: int) -> dict[str, float]:
    """The share of tokens whose source is a member, with its interval over documents."""
    counts = pd.DataFrame({"members": is_member.astype(float), "tokens": 1.0}, index=documents.index)
    units = counts.groupby(documents).sum().to_numpy()
    share = float(is_member.mean())
    low, high = _interval(bootstrap.ratio_of_sums, units, units[:, 1], share, seed)
    return {"prefix_share": share, "prefix_share_low": max(low, 0.0), "prefix_share_high": min(high, 1.0)}


# --- tokens ----------------------------------------------------------------------------------------------------


def _groups(paths: Iterable[str | Path], fixed: bool = True) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
    """Key columns and the exact tokens with a fixed point, or without, per checkpoint and group."""
    for path in paths:
        tokens = tables.read("token_spectrum", path)
        tokens = tokens[tokens["exact"] & (tokens["converged"] == fixed)]
        for (iteration, group), rows in tokens.groupby(["iteration", "group"], sort=False):
            yield {"iteration": iteration, "group": group}, rows
