"""Quality at fixed loop counts: what loops buy, and what a rule that knew the answer would spend."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from twoscale import progress
from twoscale import config
from twoscale.exits.benchmark import Reader, Row, cross_entropies, evaluate_parallel
from twoscale.exits.criteria import Fixed
from twoscale.model.transformer import LoopedTransformer


def measure_scaling(
    model: LoopedTransformer, inputs: Tensor, targets: Tensor, loops: Sequence[int], batch: int, seed: int, step: int
) -> Iterator[Row]:
    """Rows of the table "scaling_quality": held-out blocks (N, T) with every group at each of the loop counts."""
    with progress.meter(f"scaling of step {iteration}", len(loops) * inputs.numel(), "tokens") as bar:
        for count in loops:
            for start in range(0, len(inputs), batch):
                rows = slice(start, start + batch)
                logits, _ = evaluate_parallel(model, Fixed(count, model.readout), inputs[rows], start, count, seed)
                for i, ce in enumerate(cross_entropies(logits, targets[rows]).mean(1).tolist()):
                    key = {"iteration": step, "loops": count, "sequence": start + i, "tokens": inputs.shape[1]}
                    yield key | {"ce": ce, "ppl": math.exp(ce)}
                bar.update(inputs[rows].numel())


def measure_uniform_loops(
    model: LoopedTransformer, inputs: Tensor, targets: Tensor, exits: config.ExitsConfig, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "uniform_loops": the reference of the Pareto figure, on held-out blocks (N, T).

    The text is read at each of the loop counts of the rule `fixed`, which rise, all tokens and groups alike. A
    token is then counted at the least of them from which on its likeliest next token stays that of the last
    count, the full budget. No rule knows that, so it bounds what exits per token can save without changing a
    prediction.
    """
    loops, reader = exits.criteria["fixed"]["thresholds"], Reader(model, exits, seed)
    criteria = [Fixed(count, model.readout) for count in loops]
    batch = reader.batch(rules[0])
    with progress.meter("uniform budget", len(loops) * inputs.numel(), "tokens") as bar:
        for start in range(0, len(inputs), batch):
            rows = slice(start, start + batch)
            predicted, losses = [], []
            for criterion in criteria:
                logits, _ = reader.read(criterion, inputs[rows], start)
                predicted.append(logits.argmax(-1))
                losses.append(cross_entropies(logits, targets[rows]))
                bar.update(inputs[rows].numel())
            least = settled_from(torch.stack(predicted))  # (B, T)
            ce = torch.stack(losses).gather(0, least[None])[0].mean(1).tolist()
            spent = torch.tensor(loops, dtype=torch.float64, device=least.device)[least].mean(1).tolist()
            at_budget = (least == len(loops) - 1).double().mean(1).tolist()
            for i in range(len(least)):
                row = {"run": run, "sequence": start + i, "tokens": inputs.shape[1], "loops": spent[i], "ce": ce[i]}
                yield row | {"ppl": math.exp(ce[i]), "share_at_max_loops": at_budget[i]}


def settled_from(predicted: Tensor) -> Tensor:
    """First index along the first axis from which a value stays that of the last one: (L, …) -> (…) int64."""
    agrees = predicted == predicted[-1]
    return len(predicted) - agrees.flip(0).cumprod(0).sum(0)
