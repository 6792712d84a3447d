"""What a criterion is compared with: exits of the same cost without knowledge of the tokens."""

import numpy as np

RANDOM, FIXED = "random", "fixed"


def fixed_evaluations(evaluations: np.ndarray) -> np.ndarray:
    """As many evaluations per group, as equal over its tokens as whole numbers can be.

    (G, ...) -> (G, ...)
    """
    of_tokens = evaluations.reshape(len(evaluations), -1)  # (G, M)
    tokens = of_tokens.shape[1]
    least, more = np.divmod(of_tokens.sum(axis=1, keepdims=True), tokens)
    # the first `more` tokens take one evaluation more
    return (least + (np.arange(tokens) < more)).reshape(evaluations.shape)
