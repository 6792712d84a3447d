"""The cost of a loop step and of an exit decision, measured on pairs of tokens.

The time of a token under an exit criterion follows from its evaluations e_g in each group g:

    time = outside + start + sum_g e_g (loop step_g + decision_g)

`outside` is what a token costs without its loops, and `start` what the criterion costs however
short they are, such as a readout of x^0. A token is decoded twice in a row with the same loop
steps, with decisions that are read and not followed, as under a threshold that never fires, and
without them. The pairs have one loop step in every group, or all of them in one group and one in
the others, so differences give each cost.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from twoscale.base import meter
from twoscale.config import ExitsConfig
from twoscale.data.batches import HeldOut
from twoscale.exits.cost_matched import Row
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.evaluation import OperatingPoint
from twoscale.model.interface import LoopedModel, any_weight

PRECISION = 0.03  # width of the 95 % interval of a relative cost, at which the measurement ends
FEWEST_REPEATS = 10  # before it may end

Costs = dict[str, float]  # milliseconds, by column of the table
Pair = tuple[float, float]  # ms of a token without decisions, and how many more it takes with them


def measure_costs(
    decoder: Decoder,
    criteria: Mapping[OperatingPoint, ExitCriterion],
    prompts: HeldOut,
    exits: ExitsConfig,
) -> list[Row]:
    """Rows of the table "exit_costs", for all criteria but `fixed`, which needs no decisions.

    Tokens of the first prompt are decoded at places spread over the context. Repeats end when the
    cost of an evaluation relative to a loop step is known to `PRECISION` for every criterion, or
    after `exits.cost_repeats`. There are no rows for a model without groups, and for `max_loops` 1,
    which does not separate loop steps from the rest of a token.
    """
    groups = decoder.model.config.group_labels
    by_name = {name: criterion for (name, _), criterion in criteria.items() if name != "fixed"}
    if not (groups and by_name) or exits.max_loops == 1:
        return []
    pairs = _Pairs(decoder, prompts, exits)
    rows: list[Row] = []
    relative: dict[str, list[float]] = {name: [] for name in by_name}
    pairs.measure(by_name, repeat=0)  # warms up
    with meter("costs", exits.cost_repeats, "repeats") as bar:
        for repeat in range(exits.cost_repeats):
            for name, measured in pairs.measure(by_name, repeat).items():
                costs = _solve(measured, exits.max_loops)
                key = {"criterion": name, "repeat": repeat}
                rows += [
                    key | {"group": group} | of_group
                    for group, of_group in zip(groups, costs, strict=True)
                ]
                relative[name].append(_relative(costs))
            bar.update(1)
            if repeat + 1 >= FEWEST_REPEATS and _is_precise(relative.values()):
                break
    return rows


class _Pairs:
    """Pairs of tokens at places of one text."""

    def __init__(self, decoder: Decoder, prompts: HeldOut, exits: ExitsConfig) -> None:
        self._tokens = prompts.inputs[0].tolist()
        number = min(exits.latency_segments, len(self._tokens))
        self._places = [place.start for place in timed_segments(len(self._tokens), number, number)]
        self._decoder = decoder
        self._decoder.reset(sequence=int(prompts.sequences[0]))
        if self._places[-1]:
            self._decoder.prefill(self._tokens[: self._places[-1]])
        self._clock = processor_clock(decoder.model)
        count = len(decoder.model.config.groups)
        # evaluations of each group: one in all of them, then all of them in one group
        self._evaluations = [[1] * count for _ in range(count + 1)]
        for group, evaluations in enumerate(self._evaluations[1:]):
            evaluations[group] = exits.max_loops

    def measure(self, criteria: dict[str, ExitCriterion], repeat: int) -> dict[str, list[Pair]]:
        """A pair for each of the evaluations, by criterion: medians over places."""
        found: dict[str, list[list[Pair]]] = {name: [] for name in criteria}
        for number, place in enumerate(self._places):
            for name, criterion in criteria.items():
                # the one of a pair that is first has other contents of the processor's caches
                is_first = (repeat + number) % 2 == 0
                found[name].append(
                    [
                        self._pair(place, evaluations, criterion, is_first)
                        for evaluations in self._evaluations
                    ]
                )
        return {name: _medians(at_places) for name, at_places in found.items()}

    def _pair(
        self, place: int, evaluations: Sequence[int], criterion: ExitCriterion, is_first: bool
    ) -> Pair:
        if is_first:
            decided = self._time(place, evaluations, criterion)
            bare = self._time(place, evaluations, None)
        else:
            bare = self._time(place, evaluations, None)
            decided = self._time(place, evaluations, criterion)
        return bare, decided - bare

    def _time(
        self, place: int, evaluations: Sequence[int], criterion: ExitCriterion | None
    ) -> float:
        decoder = self._decoder
        decoder.position = place  # the cache keeps all of the text that was read
        started = self._clock()
        decoder.feed(self._tokens[place], evaluations, criterion)
        return 1e3 * (self._clock() - started)


def processor_clock(model: LoopedModel) -> Callable[[], float]:
    """Seconds of the processor, which other programs hardly change; on a GPU, of its work."""
    if not any_weight(model).is_cuda:
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return now


def _medians(at_places: Sequence[Sequence[Pair]]) -> list[Pair]:
    """Medians over places of either number, for each of the evaluations."""
    medians = []
    for pairs in zip(*at_places, strict=True):
        bare, more = zip(*pairs, strict=True)
        medians.append((statistics.median(bare), statistics.median(more)))
    return medians


def _solve(measured: Sequence[Pair], max_loops: int) -> list[Costs]:
    """The costs in each group, from the pair of short loops and those with one long loop."""
    (short, more), *long = measured
    further = max_loops - 1  # loop steps of a long loop beyond those of a short one
    steps = [(bare - short) / further for bare, _ in long]
    decisions = [(more_in_all - more) / further for _, more_in_all in long]
    token = {"outside_ms": short - sum(steps), "start_ms": more - sum(decisions)}
    return [
        {"loop_step_ms": step, "decision_ms": decision} | token
        for step, decision in zip(steps, decisions, strict=True)
    ]


def _relative(costs: Sequence[Costs]) -> float:
    """Cost of an evaluation over that of a loop step, over all groups."""
    steps = sum(row["loop_step_ms"] for row in costs)
    decisions = sum(row["decision_ms"] for row in costs)
    return 1 + decisions / steps


def _is_precise(relative: Iterable[list[float]]) -> bool:
    """Whether the 95 % interval of each median is at most `PRECISION` wide.

    Its ends are order statistics: the number of values below the median is binomial.
    """
    for values in relative:
        ordered = sorted(values)
        count = len(ordered)
        reach = 0.98 * math.sqrt(count)  # 1.96 standard deviations
        low = ordered[max(0, math.floor(count / 2 - reach))]
        high = ordered[min(count - 1, math.ceil(count / 2 + reach))]
        if high - low > PRECISION * statistics.median(ordered):
            return False
    return True


def timed_segments(context_length: int, tokens: int, segments: int) -> list[slice]:
    """Positions to time: `tokens` of them in up to `segments` stretches.

    Each stretch is in the centre of one of as many equal parts of the context.
    """
    segments = min(segments, tokens)
    stretches = []
    for i in range(segments):
        # context and tokens are split at the same fractions, so a stretch fits into its part
        start, stop = (context_length * j // segments for j in (i, i + 1))
        first, last = (tokens * j // segments for j in (i, i + 1))
        count = last - first
        start += (stop - start - count) // 2
        stretches.append(slice(start, start + count))
    return stretches
