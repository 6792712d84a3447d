"""Types of the thresholds of exit criteria, and their check.

Nothing here needs pydantic, so a released model contains this module as it is (`twoscale.export`).
"""

import math
from typing import Any

from twoscale.base import InputError

# Type of the thresholds of each built-in exit criterion; criteria from a user's file take positive numbers.
THRESHOLD_TYPES: dict[str, type] = {
    "fixed": int,
    "step_norm": float,
    "step_norm_relative": float,
    "kl": float,
    "acceleration": float,
    "acceleration_normalized": float,
    "acceleration_relative": float,
    "entropy_diff": float,
    "argmax_stability": int,
    "cosine": float,
    "minp_kl": float,
    "confidence": float,
    "margin": float,
    "entropy": float,
    "exit_gate": float,
    "probe": float,
}


def check_threshold(criterion: str, threshold: Any, max_loops: int | None, where: str, loops_key: str) -> None:
    """Refuse a threshold that is not a positive finite number of the criterion's type.

    Args:
        criterion: Name of the criterion.
        threshold: Its threshold.
        max_loops: Most loop steps of a token, which the threshold of `fixed` must not exceed; None: any.
        where: What the sentence begins with, such as the key of the threshold.
        loops_key: What the sentence calls `max_loops`.
    """
    whole = THRESHOLD_TYPES.get(criterion, float) is int
    good_type = isinstance(threshold, int if whole else (int, float)) and not isinstance(threshold, bool)
    if not good_type or not math.isfinite(threshold) or threshold <= 0:
        expected = "a whole number of loops" if whole else "a number"
        raise InputError(f"{where}: found {threshold!r}, expected {expected} > 0.")
    if criterion == "fixed" and max_loops is not None and threshold > max_loops:
        raise InputError(f"{where}: found {threshold}, expected at most {loops_key} = {max_loops}.")
