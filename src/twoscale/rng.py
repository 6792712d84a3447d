"""Keys of random streams: everything random is a function of what it is for.

A stream is named by a tuple such as (seed, "loops", step). Its key is a SHA-256 of that tuple, never
Python's `hash`, which differs between processes; its generator is Philox, which is counter-based, so
streams of different keys do not overlap and none has to be advanced to reach another.

torch is imported where it is needed, because the claims draw their bootstraps without it.
"""

import hashlib

import numpy as np

from twoscale.json import canonical_json


def _digest(parts: tuple) -> bytes:
    return hashlib.sha256(canonical_json(parts).encode()).digest()


def stream(*parts: int | float | str) -> np.random.Generator:
    """The generator of the stream named by `parts`, at its beginning."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(parts)[:16])))


def integer_key(*parts: int | float | str) -> int:
    """The key of a stream as an integer below 2**64, for generators that take no more (torch's)."""
    return int.from_bytes(_digest(parts)[:8])


def truncated_normal(key_parts: tuple, shape: tuple[int, ...], std: float, bound: float = 3.0) -> np.ndarray:
    """A float64 array of `shape` from the stream `key_parts`: N(0, std^2) cut at +-bound * std.

    `std` is that of the normal before truncation, as in Geiping et al.; at bound 3 the values deviate by
    0.9866 std. Drawn by the inverse of the distribution function, one uniform a value in C order, so the
    first rows do not depend on how many rows follow.
    """
    import torch

    uniforms = torch.from_numpy(stream(*key_parts).random(shape))
    lowest, highest = torch.special.ndtr(torch.tensor([-bound, bound], dtype=torch.float64)).tolist()
    normals = torch.special.ndtri(lowest + (highest - lowest) * uniforms)
    return normals.clamp_(-bound, bound).mul_(std).numpy()
