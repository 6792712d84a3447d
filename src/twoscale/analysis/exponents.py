"""Exponents of powers of the loop step that are fitted to norms."""

import numpy as np

SUMMABLE = -1.0  # steps that fall as a power of k have a finite sum if the exponent is below
FEWEST = 3  # values of a fit


def slopes(values: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Least-squares slopes of log values (units, n) in log k (n,): (units,).

    NaN and zero are left out; the slope is NaN if fewer than `FEWEST` values remain.
    """
    known = np.isfinite(values) & (values > 0)
    count = np.maximum(known.sum(1, keepdims=True), 1)
    offset = np.where(known, np.log(k) - (known * np.log(k)).sum(1, keepdims=True) / count, 0)
    with np.errstate(invalid="ignore"):
        found = (offset * np.log(np.where(known, values, 1))).sum(1) / (offset**2).sum(1)
    return np.where(count[:, 0] >= FEWEST, found, np.nan)
