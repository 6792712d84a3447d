"""Random streams: all random numbers are a function of their purpose.

A tuple such as (seed, "loops", iteration) names a stream. Its key is the SHA-256 of the tuple as
JSON, not Python's `hash`, which differs between processes. Its generator is Philox, which is
counter-based, so streams with different keys do not overlap, and no stream has to be advanced to
reach another.

numpy and torch are imported inside the functions that need them: planning imports this module
without them.
"""

import hashlib
from typing import TYPE_CHECKING

from twoscale.base import canonical_json

if TYPE_CHECKING:
    import numpy as np


def _digest(parts: tuple) -> bytes:
    return hashlib.sha256(canonical_json(parts).encode()).digest()


def stream(*parts: int | float | str) -> "np.random.Generator":
    """The generator of the stream with the name `parts`, at its beginning."""
    import numpy as np

    # the key of Philox has 128 bits
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(parts)[:16])))


def integer_key(*parts: int | float | str) -> int:
    """The key of a stream as an integer below 2**64, the range of seeds in torch."""
    return int.from_bytes(_digest(parts)[:8])


def truncated_normal(
    key_parts: tuple, shape: tuple[int, ...], std: float, bound: float = 3.0
) -> "np.ndarray":
    """Samples of N(0, std^2) truncated at +-bound * std, from the stream `key_parts`: float64.

    `std` is the standard deviation before truncation, as in Geiping et al. (arXiv 2502.05171); at
    bound 3 the samples deviate by 0.9866 std. Samples are the inverse distribution function of one
    uniform number each, in C order, so the first rows do not depend on the number of rows.
    """
    import torch

    uniforms = torch.from_numpy(stream(*key_parts).random(shape))  # in [0, 1)
    ends = torch.tensor([-bound, bound], dtype=torch.float64)
    lowest, highest = torch.special.ndtr(ends).tolist()  # Phi(-bound), Phi(bound)
    normals = torch.special.ndtri(lowest + (highest - lowest) * uniforms)  # Phi^-1
    return normals.clamp_(-bound, bound).mul_(std).numpy()
