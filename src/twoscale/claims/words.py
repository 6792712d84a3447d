"""The words for verdicts.

A claim whose verdict changes with a choice that the paper leaves open *depends on* that choice. A
claim that does not hold in a run that is much smaller than the paper's reads "not at this scale".
If every number that decides against it is shown to move towards its bounds along a line over the
checkpoints after warm-up, it reads "not at this scale; moves towards the paper". Other verdicts of
such a run are marked "small scale".
"""

from collections.abc import Iterable

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be judged"
NOT_ASKED = "not asked"  # of a run that the claim is not about
DEPENDS = "depends on"  # followed by the choices, see `depends_on`
KINDS = (HOLDS, FAILS, DEPENDS, OPEN, NOT_ASKED)  # in the order of pages
# choices that the paper leaves open; docs/judging.md lists them with the claims
REFERENCE = "the reference"  # of a change over training
UNIT = "the unit of τ"
KEPT_STATE = "the state that is kept"
GRID = "the grid"  # of thresholds
LOSS = "the loss allowed"
BOUND = "the bound"  # one that the paper does not state
SMALL_SCALE = "small scale"  # column `scale` of the table "claims"
MOVES = "; moves towards the paper"  # follows it in the row of a verdict
NOT_HERE = "not at this scale"


def depends_on(choices: Iterable[str]) -> str:
    """The verdict that changes with these choices."""
    return f"{DEPENDS} {' and '.join(choices)}"


def kind(verdict: str) -> str:
    """The one of `KINDS` that a verdict is."""
    return DEPENDS if verdict.startswith(DEPENDS) else verdict


def with_trend(mark: str, moves: bool) -> str:
    """The column `scale` of a verdict of a run with this mark, see `Verdict.moves`."""
    return mark + MOVES if mark and moves else mark


def word(verdict: str, scale: str) -> str:
    """The verdict with this `scale` in words: what does not hold in a small run is not refuted."""
    if verdict == FAILS and scale:
        return scale.replace(SMALL_SCALE, NOT_HERE)
    return verdict


def marked(verdict: str, scale: str) -> str:
    """As `word`, with the mark of a small run also for other verdicts: "holds, small scale"."""
    if verdict in (FAILS, NOT_ASKED) or not scale:
        return word(verdict, scale)
    return f"{verdict}, {scale}"


def by_word(verdicts: Iterable[tuple[int, str, str]]) -> str:
    """The claims by their verdict in words, from claim, verdict and scale of each.

    For example "holds: 1, 6 · not at this scale: 3, 4".
    """
    claims: dict[str, list[str]] = {}
    for number, verdict, scale in sorted(verdicts, key=lambda row: KINDS.index(kind(row[1]))):
        claims.setdefault(word(verdict, scale), []).append(str(number))
    return " · ".join(f"{name}: {', '.join(numbers)}" for name, numbers in claims.items())
