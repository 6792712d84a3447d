"""What the config shares with code that runs without it: constants, the sizes of a model, checks of thresholds.

Nothing here needs pydantic, so a released model contains this module as it is (`twoscale.export`).
"""

import math
from typing import Any

from twoscale.errors import InputError

NOISE_STD = math.sqrt(2 / 5)  # of the initial state, before truncation at three deviations ([G])

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


class ModelSizes:
    """Sizes of a model that follow from the keys of its config, which a subclass has as attributes."""

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_kv_heads or self.num_heads

    @property
    def mlp_width(self) -> int:
        """Hidden size of the MLP."""
        return self.mlp_size or 4 * self.hidden_size

    @property
    def embedding_factor(self) -> float:
        """Factor of the embedding."""
        return math.sqrt(self.hidden_size) if self.embedding_scale is None else self.embedding_scale

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: the vocabulary size rounded up to a multiple."""
        return math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple

    @property
    def draws_noise(self) -> bool:
        """Whether the states of a token depend on the seed of the noise."""
        return bool(self.groups) and ("noise" in self.state_init or self.loop_noise > 0)

    @property
    def effective_depth(self) -> float:
        """Layers applied per token at the mean loop count: a looped layer counts `mean_loops` times."""
        looped = sum(len(group) for group in self.groups)
        return self.num_layers - looped + looped * self.mean_loops


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
