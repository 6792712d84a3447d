"""docs/jacobians.md, from the table of measured radii."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from tests.small import ROOT
from tests.studies.spectrum.jacobians.maps import NORM, SIZE
from tests.studies.spectrum.jacobians.recipes import (
    ARNOLDI,
    DIFFERENCE,
    EPSILONS,
    EXACT,
    POWER,
    PRECISIONS,
    STEPS,
    TF32,
)
from twoscale.report.render import blocks, table

RADII, PAGE = ROOT / "docs" / "jacobians" / "radii.parquet", ROOT / "docs" / "jacobians.md"
TEMPLATE = Path(__file__).with_name("page.md")


def page(radii: pd.DataFrame) -> str:
    """Markdown of the measured radii."""
    parts = {"recipe": _recipe(radii), "errors": _errors(radii), "methods": _methods(radii)}
    return blocks(TEMPLATE.read_text(encoding="utf-8").format(**parts, **_values(radii), size=SIZE, norm=f"{NORM:g}"))


def _values(radii: pd.DataFrame) -> dict[str, str]:
    """The numbers of `sudoku` in the text."""
    states = [of_map for (name, _), of_map in _states(radii) if name == "sudoku"]
    recipe = {"product": DIFFERENCE, "epsilon": 1e-3, "steps": max(STEPS)}
    precisions = {"tf32": TF32, "float32": "float32", "float64": "float64"}
    found = {name: [_estimate(rows, precision=p, **recipe) for rows in states] for name, p in precisions.items()}
    found["exact"] = [_number(reference(rows)) for rows in states]
    values = {f"sudoku_{name}": ", ".join(numbers) for name, numbers in found.items()}
    return values | {"spread": f"{_spread(radii):.1g}", "exact_float32": f"{_exact_float32(radii):.1g}"}


def _spread(radii: pd.DataFrame) -> float:
    """Largest relative difference, on one map, of forward differences in float64 with any ε."""
    chosen = radii[
        (radii["product"] == DIFFERENCE) & (radii["precision"] == "float64") & (radii["steps"] == max(STEPS))
    ]
    by_state = chosen.groupby(["map", "loops"])["radius"]
    return (by_state.max() / by_state.min() - 1).max()


def _exact_float32(radii: pd.DataFrame) -> float:
    """Largest relative difference of power iterations with exact products in float32 from float64."""
    exact = radii[(radii["product"] == EXACT) & (radii["method"] == POWER)]
    by_precision = exact.pivot(index=["map", "loops", "steps"], columns="precision", values="radius")
    return (by_precision["float32"] / by_precision["float64"] - 1).abs().max()


def reference(rows: pd.DataFrame) -> float:
    """The radius of one map at one state: in closed form, or else of exact products in float64 by Arnoldi's method."""
    known = rows[rows["method"] == "closed form"]
    exact = rows[(rows["method"] == ARNOLDI) & (rows["precision"] == "float64")]
    return (known if len(known) else exact)["radius"].item()


def errors(radii: pd.DataFrame) -> pd.DataFrame:
    """The rows of forward differences after the most steps, with |radius / reference − 1| in the column `error`."""
    shown = []
    for _, rows in _states(radii):
        estimates = rows[(rows["product"] == DIFFERENCE) & (rows["steps"] == max(STEPS))]
        shown.append(estimates.assign(error=(estimates["radius"] / reference(rows) - 1).abs()))
    return pd.concat(shown)


def _states(radii: pd.DataFrame) -> Iterator[tuple[tuple[str, int], pd.DataFrame]]:
    return iter(radii.groupby(["map", "loops"], sort=False))


def _name(name: str, loops: int) -> str:
    return f"{name}, k = {loops}" if loops else name


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3g}" if value >= 10 else f"{value:.3f}"


def _estimate(rows: pd.DataFrame, **recipe: object) -> str:
    """The radius of the one row of a recipe, empty if it was not measured."""
    chosen = np.logical_and.reduce([rows[column] == value for column, value in recipe.items()])
    found = rows.loc[chosen, "radius"]
    return _number(found.item()) if len(found) else ""


def _recipe(radii: pd.DataFrame) -> str:
    """Forward differences with ε = 1e-3 and 100 steps in each precision, `sudoku` first, then other loops."""
    rows = []
    for (name, loops), of_map in sorted(_states(radii), key=lambda state: (state[0][0] != "sudoku", state[0][1] == 0)):
        found = (
            _estimate(of_map, product=DIFFERENCE, precision=precision, epsilon=1e-3, steps=max(STEPS))
            for precision in PRECISIONS
        )
        norm = of_map["norm"].iloc[0]
        rows.append((_name(name, loops), f"{norm:.0f}", *found, _number(reference(of_map))))
    return table(("map", "norm of the state", *PRECISIONS, "radius"), rows)


def _errors(radii: pd.DataFrame) -> str:
    """Median and largest relative error over the maps by precision and ε, and at how many there is no number."""
    rows = []
    for precision, of_precision in errors(radii).groupby("precision", sort=False):
        by_epsilon = of_precision.groupby("epsilon")["error"]
        rows.append((precision, *(_error_cell(by_epsilon.get_group(epsilon)) for epsilon in EPSILONS)))
    return table(("precision", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)), rows)


def _error_cell(found: pd.Series) -> str:
    numbers = found.dropna()
    missing = f", none at {len(found) - len(numbers)}" if len(numbers) < len(found) else ""
    return f"{numbers.median():.2g}, {numbers.max():.2g}{missing}" if len(numbers) else "none"


def _methods(radii: pd.DataFrame) -> str:
    """Exact products: power iteration after some numbers of steps, and Arnoldi's method."""
    rows = []
    for (name, loops), of_map in _states(radii):
        exact = of_map[of_map["product"] == EXACT]
        power = (_estimate(exact, method=POWER, precision="float64", steps=steps) for steps in STEPS)
        arnoldi = (_estimate(exact, method=ARNOLDI, precision=precision) for precision in ("float32", "float64"))
        residual = exact.loc[(exact["method"] == ARNOLDI) & (exact["precision"] == "float64"), "residual"].item()
        rows.append((_name(name, loops), *power, *arnoldi, f"{residual:.1g}", _number(reference(of_map))))
    header = (*(f"power, {steps} steps" for steps in STEPS), "Arnoldi, float32", "Arnoldi, float64", "residual")
    return table(("map", *header, "radius"), rows)
