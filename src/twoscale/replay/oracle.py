"""The budget oracle: exits with hindsight, from the losses of every token after every loop step."""

import numpy as np

from twoscale.replay import TOLERANCE

# Prices of an evaluation in nats, 8 per decade: those at which the budget oracle is measured.
PRICES = tuple(10 ** (exponent / 8) for exponent in range(-48, 9))


def exit_costs(states: int) -> np.ndarray:
    """Evaluations (states,) that lead to each of x^0, x^1, ….

    1 for x^0, as nothing decides before the first one.
    """
    return np.maximum(np.arange(states), 1)


def cheapest_exits(losses: np.ndarray, price: float) -> np.ndarray:
    """The exit of each token with the least loss + price x evaluations, (…) int64.

    losses: of x^0, x^1, …, (L, …), in nats. price: nats per evaluation. Of exits that cost the same
    the first one is taken. Over all prices these are the lower convex hull of what exits per token
    can reach: no choice of exits with the same mean evaluations has a lower loss than a point
    between two of them.
    """
    costs = price * exit_costs(len(losses)).astype(losses.dtype)
    of_states = costs.reshape(-1, *[1] * (losses.ndim - 1))  # (L, 1, …)
    return (losses + of_states).argmin(axis=0)


def split_half(losses: np.ndarray, tolerance: float = TOLERANCE) -> dict[str, np.ndarray]:
    """What `replay.gains.reliability` averages, for losses (L, …) of x^0, x^1, ….

    The depth that each token needs, among odd and among even loop steps: the first one whose loss
    is within the tolerance, in nats, of the lowest. Where the loss is flat from some depth on, the
    depth of the lowest loss itself would be drawn by noise. Then their squares, their product, and
    the product with the even depth of another token, (…) each. If the halves correlate only by
    chance, an oracle gains from noise.
    """
    odd = 2.0 * _first_within(losses[1::2], tolerance) + 1  # of x^1, x^3, …
    even = 2.0 * _first_within(losses[2::2], tolerance) + 2  # of x^2, x^4, …
    # the token half the text away
    other = np.roll(even.reshape(-1), even.size // 2).reshape(even.shape)
    return {
        "odd": odd,
        "even": even,
        "odd_odd": odd * odd,
        "even_even": even * even,
        "odd_even": odd * even,
        "odd_other": odd * other,
    }


def _first_within(losses: np.ndarray, tolerance: float) -> np.ndarray:
    """Place of the first loss within the tolerance of the lowest one, (…) for losses (L, …)."""
    return (losses <= losses.min(axis=0) + tolerance).argmax(axis=0)
