"""The thresholds of an exit criterion from many evaluations to few, with the loss of each on held-out documents.

They are ordered on some documents and measured on others, so the test that chooses one (`draw.calibrate`) sees no
document that has shaped the order (Pareto Testing, arXiv 2210.07913). Only the tokens of a sequence that belong to the
document of its first token count, so no document is in two parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twoscale import rng
from twoscale.base import InputError, meter
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.data.shards import TokenMetadata, read_metadata
from twoscale.exits.benchmark import try_criteria
from twoscale.exits.criteria import ExitCriterion, Fixed
from twoscale.exits.evaluation import OperatingPoint, TextEvaluator, make_criteria
from twoscale.exits.probe import Probe, open_probe
from twoscale.exits.references import Row
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.loss import cross_entropies

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob

PARTS = ("search", "report", "calibration")
SHARE = 0.25  # of the documents in each of the first two parts
PATH_END = 0.3  # nats per token above full depth on the documents of the search, at which the thresholds end


def run(job: "CheckpointJob") -> None:
    """Write the table "calibration_runs" of one criterion; a user's is tried first."""
    config = job.config
    torch.set_num_threads(job.threads)
    checkpoint, text = job.checkpoint(config.exits.dtype), job.held_out(config.sequences)
    if config.criterion_files:
        try_criteria(checkpoint, text.inputs[0], config.exits)
    probe = open_probe(job.optional("probe"), checkpoint)
    end_of_text = read_metadata(job.file("metadata"), TokenMetadata).end_of_text
    rows = measure_calibration(checkpoint, text, config, end_of_text, probe)
    job.write("calibration_runs", rows, "runs")


def split_documents(documents: Sequence[int], seed: int) -> dict[int, str]:
    """The part of each document, drawn at random; InputError if there are fewer documents than parts."""
    distinct = sorted(set(documents))
    if (number := len(distinct)) < len(PARTS):
        raise InputError(
            f"config key calibration.tokens: found {number} documents in the held-out tokens, expected at least "
            f"{len(PARTS)}, to divide them; raise this key or data.held_out_tokens."
        )
    size = max(1, round(SHARE * number))
    order = rng.stream(seed, "calibration").permutation(number).tolist()
    return {distinct[index]: PARTS[min(place // size, 2)] for place, index in enumerate(order)}


def own_tokens(inputs: Tensor, end_of_text: int) -> Tensor:
    """Which tokens belong to the document of the first one of their sequence, its end included: ids (N, T) -> bool."""
    ends = inputs == end_of_text
    return ends.cumsum(1) - ends.to(torch.int64) == 0


def measure_text(evaluator: TextEvaluator, text: HeldOut, criterion: ExitCriterion, own: Tensor) -> dict[str, Tensor]:
    """Means of `ce` and `evaluations` of the criterion over the own tokens (N, T) of each sequence, float64 (N,)."""
    losses, spent = [], []
    for batch in text.batches(evaluator.batch_size(criterion)):
        logits, counts = evaluator.evaluate(criterion, batch)
        losses.append(cross_entropies(logits, batch.targets).cpu())
        spent.append(counts.evaluations.cpu())
    ce, evaluations = ((each * own).sum(-1) / own.sum(-1) for each in (torch.cat(losses), torch.cat(spent, dim=1)))
    return {"ce": ce, "evaluations": evaluations.T.mean(1)}  # evaluations (G, N)


def order_points(costs: Mapping[OperatingPoint, tuple[float, float]]) -> list[OperatingPoint]:
    """The thresholds from many evaluations to few, up to the first one that loses more than `PATH_END` nats.

    costs: Nats above full depth and evaluations at each (criterion, threshold).
    """
    path = sorted(costs, key=lambda point: costs[point][1], reverse=True)
    past = (number for number, point in enumerate(path, start=1) if costs[point][0] > PATH_END)
    return path[: next(past, len(path))]


def measure_calibration(
    checkpoint: LoadedCheckpoint, text: HeldOut, config: ConfigSlice, end_of_text: int, probe: Probe | None = None
) -> Iterator[Row]:
    """Rows of the table "calibration_runs" without its column `run`: one per (threshold, sequence).

    config: `exits` with one criterion and its thresholds, and `seed`.
    """
    criteria, evaluator = make_criteria(config.exits, probe), TextEvaluator(checkpoint, config.exits)
    full_depth, part_of = Fixed(config.exits.max_loops), split_documents(text.documents, config.seed)
    parts = [part_of[document] for document in text.documents]
    order = sorted(range(len(parts)), key=lambda row: parts[row] != "search")  # the sequences of the search come first
    sequences, documents = (tuple(values[row] for row in order) for values in (text.sequences, text.documents))
    text = HeldOut(text.inputs[order], text.targets[order], sequences, documents)
    searched, rest = text[: parts.count("search")], text[parts.count("search") :]
    with meter("calibration", None, "tokens") as bar:
        own, costs = own_tokens(searched.inputs, end_of_text).double(), {}
        full, weights = measure_text(evaluator, searched, full_depth, own), own.sum(1) / own.sum()
        for point, criterion in criteria.items():
            found = measure_text(evaluator, searched, criterion, own)
            costs[point] = float(weights @ (found["ce"] - full["ce"])), float(weights @ found["evaluations"])
            bar.update(searched.inputs.numel())
        own = own_tokens(rest.inputs, end_of_text).double()
        full = measure_text(evaluator, rest, full_depth, own)
        for number, (name, threshold) in enumerate(order_points(costs)):
            found = measure_text(evaluator, rest, criteria[name, threshold], own)
            bar.update(rest.inputs.numel())
            for i, key in enumerate(rest.keys):
                row = {"criterion": name, "point": number, "threshold": float(threshold)}
                row |= key | {"part": part_of[key["document"]], "tokens": own[i].sum().item()}
                yield row | {column: v[i].item() for column, v in (found | {"full_depth_ce": full["ce"]}).items()}
