"""Paths of thresholds for an exit criterion, with loss and evaluations of each point on held-out documents.

A path leads from many evaluations to few. The path "common" has the same threshold in every group. On the path
"per_group" each point lowers the evaluations of one group: of the groups, the one that saves most evaluations per nat.
Paths are searched on some documents and measured on others, so the tests that choose a point
(`twoscale.studies.calibration.risk_control`) see no document that has shaped the path. This is Pareto Testing
(Laufer-Goldshtein et al., arXiv 2210.07913), with a greedy path in place of a frontier.

Only the tokens of a sequence that belong to the document of its first token count, so no document is in two parts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from twoscale import rng
from twoscale.base import InputError, meter
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.data.shards import read_end_of_text
from twoscale.exits.benchmark import Row, TextEvaluator, criterion_classes
from twoscale.exits.criteria import ExitCriterion, Fixed
from twoscale.exits.probe import Probe, open_probe
from twoscale.exits.trial import try_criteria
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.loss import cross_entropies
from twoscale.studies.calibration.per_group import make_per_group

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob

SEARCH, CALIBRATION, REPORT = PARTS = ("search", "calibration", "report")
Thresholds = tuple[float, ...]  # of each group


def run(job: "CheckpointJob") -> None:
    """Write the tables "calibration_runs" and "calibration_paths" of one criterion; a user's is tried first."""
    config = job.config
    torch.set_num_threads(job.threads)
    checkpoint, text = job.checkpoint(config.exits.dtype), job.held_out(config.sequences)
    if config.criterion_files:
        try_criteria(checkpoint, text.inputs[0], config.exits)
    end_of_text = read_end_of_text(job.file("metadata"))
    probe = open_probe(job.optional("probe"), checkpoint)
    runs, paths = measure_calibration(checkpoint, text, config, end_of_text, probe)
    job.write("calibration_runs", runs, "runs")
    job.write("calibration_paths", paths, "paths")


class Cost(NamedTuple):
    """Means over tokens under an exit criterion: nats above all loop steps, and evaluations of each group."""

    excess: float
    evaluations: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.evaluations)


Measure = Callable[[Thresholds], Cost]


# --- documents --------------------------------------------------------------------------------------------------


def split_documents(documents: Sequence[int], search_share: float, report_share: float, seed: int) -> dict[int, str]:
    """The part of each document, drawn at random; at least one document in each part.

    The shares are the sizes of two parts; the other documents are in "calibration". Raises InputError if there are
    fewer documents than parts.
    """
    distinct = sorted(set(documents))
    if len(distinct) < len(PARTS):
        raise InputError(
            f"config key calibration.tokens: found {len(distinct)} documents in the held-out tokens, expected at "
            f"least {len(PARTS)}, for the parts {', '.join(PARTS)}; raise this key or data.held_out_tokens."
        )
    number = len(distinct)
    search = min(max(1, round(search_share * number)), number - 2)
    report = min(max(1, round(report_share * number)), number - 1 - search)
    parts = [SEARCH] * search + [REPORT] * report + [CALIBRATION] * (number - search - report)
    order = rng.stream(seed, "calibration").permutation(number)
    return {distinct[index]: part for index, part in zip(order.tolist(), parts, strict=True)}


def own_tokens(inputs: Tensor, end_of_text: int) -> Tensor:
    """Which tokens belong to the document of the first one of their sequence, its end included: ids (N, T) -> bool."""
    ends = inputs == end_of_text
    return ends.cumsum(1) - ends.to(torch.int64) == 0


def select(text: HeldOut, rows: Sequence[int]) -> HeldOut:
    """The sequences of these rows."""
    sequences, documents = (tuple(values[row] for row in rows) for values in (text.sequences, text.documents))
    return HeldOut(text.inputs[list(rows)], text.targets[list(rows)], sequences, documents)


# --- measurements -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """N sequences under an exit criterion: means over their own tokens, float64 (N,); evaluations (N, G)."""

    tokens: Tensor
    ce: Tensor
    full_depth_ce: Tensor
    agreement: Tensor
    evaluations: Tensor

    @property
    def cost(self) -> Cost:
        """Means over the own tokens of all sequences."""
        weights = self.tokens / self.tokens.sum()
        return Cost(float(weights @ (self.ce - self.full_depth_ce)), tuple((weights @ self.evaluations).tolist()))


class MeasuredText:
    """Held-out sequences, measured under exit criteria against full depth.

    Args:
        evaluator: Reads sequences under a criterion.
        text: The sequences.
        end_of_text: Id of the end of text.
    """

    def __init__(self, evaluator: TextEvaluator, text: HeldOut, end_of_text: int) -> None:
        self.evaluator, self.text = evaluator, text
        self.own = own_tokens(text.inputs, end_of_text).double()  # (N, T)
        self.full_depth_ce, self.predictions, _ = self._read(Fixed(evaluator.exits.max_loops))

    def measure(self, criterion: ExitCriterion) -> Measured:
        """Loss and evaluations of the criterion on the sequences."""
        ce, predictions, evaluations = self._read(criterion)
        own, full = self._mean(ce), self._mean(self.full_depth_ce)
        agreement = self._mean(predictions == self.predictions)
        return Measured(self.own.sum(1), own, full, agreement, self._mean(evaluations).T)

    def _mean(self, values: Tensor) -> Tensor:
        """Over the own tokens: (…, N, T) -> float64 (…, N)."""
        return (values * self.own).sum(-1) / self.own.sum(-1)

    def _read(self, criterion: ExitCriterion) -> tuple[Tensor, Tensor, Tensor]:
        """Cross-entropies and most likely next tokens (N, T), and evaluations (G, N, T), on the CPU."""
        parts = []
        for batch in self.text.batches(self.evaluator.batch_size(criterion)):
            logits, counts = self.evaluator.evaluate(criterion, batch)
            values = cross_entropies(logits, batch.targets), logits.argmax(-1), counts.evaluations
            parts.append([value.cpu() for value in values])
        ce, predictions, evaluations = zip(*parts, strict=True)
        return torch.cat(ce), torch.cat(predictions), torch.cat(evaluations, dim=1)


# --- paths ------------------------------------------------------------------------------------------------------


def search_paths(grid: Sequence[float], groups: int, measure: Measure, end: float) -> dict[str, list[Thresholds]]:
    """The paths "common" and, for several groups, "per_group".

    Args:
        grid: Thresholds of one group.
        groups: Number of looped groups, G.
        measure: Loss and evaluations of thresholds on the documents of the search.
        end: A path ends with its first point whose excess is above this.
    """
    costs = {threshold: measure((threshold,) * groups) for threshold in grid}
    # whether a larger threshold exits earlier or later depends on the criterion
    rungs = sorted(grid, key=lambda threshold: costs[threshold].total, reverse=True)
    points = [(threshold,) * groups for threshold in rungs]
    past = (number for number, threshold in enumerate(rungs, start=1) if costs[threshold].excess > end)
    paths = {"common": points[: next(past, len(points))]}
    if groups > 1:
        ladders = [
            _ladder(rungs, [costs[threshold].evaluations[group] for threshold in rungs]) for group in range(groups)
        ]
        paths["per_group"] = _greedy_path(ladders, costs[rungs[0]], measure, end)
    return paths


def _ladder(rungs: Sequence[float], evaluations: Sequence[float]) -> list[float]:
    """The thresholds at which a group has fewer evaluations than at all before, the first included."""
    least = np.minimum.accumulate([np.inf, *evaluations[:-1]])
    return [rung for rung, own, before in zip(rungs, evaluations, least, strict=True) if own < before]


def _greedy_path(ladders: Sequence[Sequence[float]], cost: Cost, measure: Measure, end: float) -> list[Thresholds]:
    """Thresholds from the first rung of every ladder on; each point is one rung further in one group."""
    index = (0,) * len(ladders)
    path = [_thresholds(ladders, index)]
    while cost.excess <= end and (steps := list(_steps(ladders, index))):
        costs = {step: measure(_thresholds(ladders, step)) for step in steps}
        index = min(steps, key=lambda step: _price(cost, costs[step]))
        cost = costs[index]
        path.append(_thresholds(ladders, index))
    return path


def _steps(ladders: Sequence[Sequence[float]], index: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The indices one rung further in one group."""
    for group, ladder in enumerate(ladders):
        if index[group] + 1 < len(ladder):
            yield (*index[:group], index[group] + 1, *index[group + 1 :])


def _price(before: Cost, after: Cost) -> float:
    """Nats per evaluation saved; infinite if none is saved."""
    saved = before.total - after.total
    return (after.excess - before.excess) / saved if saved > 0 else np.inf


def _thresholds(ladders: Sequence[Sequence[float]], index: tuple[int, ...]) -> Thresholds:
    return tuple(ladder[rung] for ladder, rung in zip(ladders, index, strict=True))


# --- tables -----------------------------------------------------------------------------------------------------


def measure_calibration(
    checkpoint: LoadedCheckpoint, text: HeldOut, config: ConfigSlice, end_of_text: int, probe: Probe | None = None
) -> tuple[list[Row], list[Row]]:
    """Rows of the tables "calibration_runs" and "calibration_paths" without their column `run`.

    Args:
        checkpoint: The model and the seed of its noise.
        text: Held-out sequences of all three parts.
        config: `exits` with one criterion and its thresholds, `seed`, and of the section `calibration`, as plain
            values, `search_share`, `report_share` and `path_end`.
        end_of_text: Id of the end of text.
        probe: Fitted probe, for its criterion.
    """
    ((name, entry),) = config.exits.criteria.items()
    classes, evaluator = criterion_classes(config.exits, probe), TextEvaluator(checkpoint, config.exits)
    part_of = split_documents(text.documents, config.search_share, config.report_share, config.seed)
    labels = checkpoint.model.config.group_labels

    def measured_text(*parts: str) -> MeasuredText:
        rows = [row for row, document in enumerate(text.documents) if part_of[document] in parts]
        return MeasuredText(evaluator, select(text, rows), end_of_text)

    def measure(part: MeasuredText, bar: Any, thresholds: Thresholds) -> Measured:
        bar.update(part.text.inputs.numel())
        return part.measure(make_per_group(name, thresholds, classes))

    with meter(f"search of {name}", None, "tokens") as bar:
        searched = measured_text(SEARCH)
        paths = search_paths(
            entry.thresholds, len(labels), lambda point: measure(searched, bar, point).cost, config.path_end
        )
    rest = measured_text(CALIBRATION, REPORT)
    points = list(dict.fromkeys(point for path in paths.values() for point in path))
    with meter(f"calibration of {name}", len(points) * rest.text.inputs.numel(), "tokens") as bar:
        measured = {point: measure(rest, bar, point) for point in points}
    return (
        [row for path in paths for row in _run_rows(name, path, paths[path], measured, rest.text, part_of)],
        [row for path in paths for row in _path_rows(name, path, paths[path], labels)],
    )


def _run_rows(
    name: str,
    path: str,
    points: Sequence[Thresholds],
    measured: dict[Thresholds, Measured],
    text: HeldOut,
    part_of: dict[int, str],
) -> Iterator[Row]:
    """One row per (point of the path, sequence)."""
    for index, point in enumerate(points):
        found = measured[point]
        means = {column: getattr(found, column).tolist() for column in ("tokens", "ce", "full_depth_ce", "agreement")}
        means["evaluations"] = found.evaluations.mean(1).tolist()
        for i, key in enumerate(text.keys):
            row = {"criterion": name, "path": path, "point": index, "part": part_of[key["document"]]}
            yield row | key | {column: values[i] for column, values in means.items()}


def _path_rows(name: str, path: str, points: Sequence[Thresholds], labels: Sequence[str]) -> Iterator[Row]:
    """One row per (point of the path, group)."""
    for index, point in enumerate(points):
        for group, threshold in zip(labels, point, strict=True):
            row = {"criterion": name, "path": path, "point": index}
            yield row | {"group": group, "threshold": float(threshold)}
