"""Exit rules on the signals of a recording: at which depth each token would leave.

The rules are those of the paper (step norm, KL, acceleration with two hits), of the parent work
(relative step norm, cosine, entropy difference, stability of the argmax, min-p KL), of the
prediction (entropy, confidence, margin), and contraction. A rule is offered where the recording
has its signal; any other column is one if it is asked for, and both directions are tried.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from twoscale.base import InputError, did_you_mean
from twoscale.config.criteria import ABOVE, BELOW, CRITERIA_OF_COLUMNS, FACTS, Facts, Patience
from twoscale.replay.recording import Exits, ExitSteps, Recording

Leaving = Callable[[Recording], ExitSteps]  # of the tokens of a part of a recording
PAIR = ("margin", "argmax_stability")  # the pair that is tried without being asked for
THRESHOLDS = 48  # of a rule with one signal
THRESHOLDS_OF_PAIR = 12  # of each of its two signals
_SAMPLED = 2**20  # values of a signal from which quantiles are taken
_ONE_HIT = Facts(exits=BELOW)  # one hit, and the token keeps its last state


@dataclass(frozen=True)
class Option:
    """One rule at one threshold, or the fixed exits of another program.

    Attributes:
        rule: Name of the rule.
        condition: When a token leaves, such as "entropy < 0.31".
        threshold: The threshold, of a pair that of its first signal.
        units: What it costs in each document of a part of the data (D, 4): evaluations, excess
            above full depth, excess of random exits of the same cost, and tokens.
        exits: When the tokens of a part of a recording leave; None where only units are known.
    """

    rule: str
    condition: str
    threshold: float
    units: Callable[[Any], np.ndarray]
    exits: Leaving | None = None


def _of_exits(rule: str, condition: str, threshold: float, exits: Leaving) -> Option:
    """An option that is known by the exits of all tokens."""
    return Option(rule, condition, threshold, lambda part: part.units(exits(part)), exits)


def with_contraction(signals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The signals, and those that follow from the step norm and the norm of the state.

    `contraction` is the distance that the state still has to go if its steps keep shrinking by
    the same factor r, relative to its norm: δ r / (1 − r) / ‖x‖ (vLLM-Hook's rule). A step that
    is not smaller than the one before has none, so the rule does not leave there.
    """
    found = dict(signals)
    if "step_norm" not in signals or "norm" not in signals:
        return found
    # the least norm and the least step below keep both divisions finite
    step, norm = signals["step_norm"], np.maximum(signals["norm"], 1e-9)
    before = np.full_like(step, np.nan)
    before[1:] = step[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = step / np.maximum(before, 1e-9)
        # the sum δ r + δ r² + … of the steps that are left
        rest = step * factor / (1 - factor) / norm
        found["contraction"] = np.where(factor < 1, rest, np.nan)
    found.setdefault("step_norm_relative", step / norm)
    return found


def with_signals(
    recording: Recording, asked: Collection[str], asked_pairs: Collection[Sequence[str]] = ()
) -> Recording:
    """The recording with the signals that rules exit by: the ones that were asked for, or else all
    that have the name of a criterion or follow from these; and those of the pairs.

    The note names the columns of numbers that are left out: a column that is no signal, such as a
    time or a label, may know the loss. Raises InputError for a signal that is not there.
    """
    signals = with_contraction(recording.signals)
    for name in asked:
        if name not in signals:
            expected = f"a signal of the table{did_you_mean(name, signals)}"
            raise InputError(f"--signals: found {name}, expected {expected}.")
    paired = [name for pair in asked_pairs for name in pair]
    tried = [
        name
        for name in signals
        if name in paired or (name in asked if asked else _facts(name) is not None)
    ]
    others = [name for name in recording.signals if name not in (*tried, "norm")]
    left_out = f"not tried: {', '.join(others)} (--signals tries them)" if others else ""
    note = "; ".join(filter(None, (recording.note, left_out)))
    return replace(recording, signals={name: signals[name] for name in tried}, note=note)


def options(recording: Recording, pairs: list[tuple[str, str]]) -> Iterator[list[Option]]:
    """The options of each rule, one list per rule, for the signals of this recording.

    Thresholds are quantiles of the signal, over tokens and depths of this recording.
    """
    signals = recording.signals
    for name, values in signals.items():
        facts = _facts(name)
        directions = [facts.exits] if facts else [BELOW, ABOVE]
        grid = _quantiles(values, THRESHOLDS)
        found = [
            _option([(name, direction, threshold)])
            for direction in directions
            for threshold in grid
        ]
        if found:
            yield found
    for pair in pairs:
        grids = [_quantiles(signals[name], THRESHOLDS_OF_PAIR) for name in pair]
        known = [_facts(name) or _ONE_HIT for name in pair]
        directions = [facts.exits for facts in known]
        yield [
            _option(list(zip(pair, directions, thresholds, strict=True)))
            for thresholds in product(*grids)
        ]


def pairs(recording: Recording, asked: list[list[str]]) -> list[tuple[str, str]]:
    """The pairs of signals that were asked for; without any, `PAIR` where the recording has it."""
    known = list(recording.signals)
    for name in (name for pair in asked for name in pair):
        if name not in known:
            expected = f"a signal of the table{did_you_mean(name, known)}"
            raise InputError(f"--both: found {name}, expected {expected}.")
    if asked:
        return [(first, second) for first, second in asked]
    return [PAIR] if set(PAIR) <= set(known) else []


def options_of_exits(exits: Exits) -> list[list[Option]]:
    """The options of each criterion of another program."""
    by_rule: dict[str, list[Option]] = {}
    for (criterion, threshold), depths in exits.items():
        # the default holds these depths; without it all options would read the last ones
        def chosen(part: Recording, depths: np.ndarray = depths) -> ExitSteps:
            of_part = depths if part.places is None else depths[part.places]
            return ExitSteps(of_part, of_part)

        option = _of_exits(criterion, f"{criterion} at {threshold:.3g}", threshold, chosen)
        by_rule.setdefault(criterion, []).append(option)
    return list(by_rule.values())


def _option(conditions: list[tuple[str, str, float]]) -> Option:
    """The option that leaves where all conditions (signal, direction, threshold) hold."""
    names = [name for name, _, _ in conditions]
    known = [_facts(name) or _ONE_HIT for name in names]
    patience = max(facts.patience for facts in known)
    keeps_previous = any(facts.keeps == "previous" for facts in known)
    texts = [f"{name} {direction} {value:.3g}" for name, direction, value in conditions]
    _, _, threshold = conditions[0]

    def exits(part: Recording) -> ExitSteps:
        holds = np.ones(part.cost.shape, dtype=bool)  # (K, M)
        for name, direction, value in conditions:
            values = part.signals[name]  # (K, M)
            holds &= values < value if direction == BELOW else values >= value  # NaN: neither
        return exit_steps(holds, patience, keeps_previous)

    hits = f", {patience} times in a row" if patience > 1 else ""
    return _of_exits(" and ".join(names), " and ".join(texts) + hits, threshold, exits)


def _facts(signal: str) -> Facts | None:
    """What is known of a signal: the facts of its criterion, or of the rule `contraction`."""
    if signal == "contraction":
        return _ONE_HIT
    return FACTS.get(CRITERIA_OF_COLUMNS.get(signal, ""))


def exit_steps(holds: np.ndarray, patience: int = 1, keeps_previous: bool = False) -> ExitSteps:
    """Tokens leave at the first depth at which a condition (K, M) has held `patience` times.

    A token that never leaves keeps its last state under every rule.
    """
    count = Patience(patience)
    hit = np.stack([count.ends(of_depth) for of_depth in holds])
    left = hit.any(axis=0)
    # `argmax` of booleans is the place of the first true one; depths count from 1
    evaluations = np.where(left, hit.argmax(axis=0) + 1, len(holds))
    return ExitSteps(evaluations, evaluations - (left & keeps_previous))


def _quantiles(values: np.ndarray, count: int) -> np.ndarray:
    """Thresholds (≤ count,) between the values of a signal, ascending and different."""
    sample = values.reshape(-1)[:: max(1, values.size // _SAMPLED)]  # evenly
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return sample
    # without the outermost values, at which nearly all tokens leave at once, or nearly none at all
    return np.unique(np.quantile(sample, np.linspace(0.005, 0.995, count)))
