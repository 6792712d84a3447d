"""Principal components of hidden states, for figures and pages that draw trajectories. Without torch."""

import numpy as np


def project(values: np.ndarray, components: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (P, T, n) of the states (P, T, C) in their n principal directions, and variance shares (n,).

    The directions are fitted to the union of all tokens, depths and loop steps (section 3 of the paper); the
    largest loading of each is positive, which fixes the signs. There are at most C directions.
    """
    union = values.reshape(-1, values.shape[-1]).astype(np.float64)
    union -= union.mean(axis=0)
    # The right singular vectors of the data, from its C x C scatter: P T is up to a hundred times C.
    _, scatter, directions = np.linalg.svd(union.T @ union, hermitian=True)
    main = directions[:components]
    largest = np.abs(main).argmax(axis=1)
    main = main * np.sign(main[np.arange(len(main)), largest])[:, None]
    return (union @ main.T).reshape(*values.shape[:2], len(main)), scatter[: len(main)] / scatter.sum()
