"""Loop counts at which a depth card has a row, as multiples of the trained loops."""

from collections.abc import Iterable

MULTIPLES = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def loop_counts(trained: float, multiples: Iterable[float] = MULTIPLES, most: int | None = None) -> tuple[int, ...]:
    """Whole loop counts next to the multiples of `trained`, which is one of them, at least 1 and at most `most`."""
    counts = {max(1, round(multiple * trained)) for multiple in (1.0, *multiples)}
    return tuple(sorted(count for count in counts if most is None or count <= most))
