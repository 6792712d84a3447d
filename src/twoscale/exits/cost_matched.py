"""Cost-matched exits: as expensive as an exit criterion's, and independent of the tokens.

A criterion is worth its checks only if it knows which tokens to spend loop steps on. They take exactly the
evaluations that the criterion took on the same text, in every group, and runs through the same causal engine:

- `random`: the criterion's own counts of evaluations, so the same histogram, given to tokens at random;
- `fixed`: the same count for all tokens. Where the mean is no whole number, as many tokens as needed take one
  evaluation more, drawn at random.

They keep the state of their last evaluation, also where the criterion discards that state (`keeps`).
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from twoscale import rng
from twoscale.data.batches import HeldOut
from twoscale.exits.criteria import ExitCriterion, State
from twoscale.model.interface import Readout
from twoscale.model.loss import cross_entropies

RANDOM, FIXED = "random", "fixed"
Row = dict[str, object]
EvaluatePlanned = Callable[[Tensor, HeldOut], Tensor]  # plan (G, B, T), B held-out sequences -> logits (B, T, V)


class Planned(ExitCriterion):
    """Exits of a whole text after planned evaluations, int64 (G, B, T), at least 1 each.

    It holds the plan of every token, so it works in the parallel engine only. The token keeps its last state.
    """

    def __init__(self, plan: Tensor) -> None:
        super().__init__(threshold=float("nan"))
        self.plan = plan

    def of_group(self, group: int) -> "Planned":
        return Planned(self.plan[group].flatten())

    def start(self, x0: Tensor) -> State:
        if len(x0) != len(self.plan):
            raise ValueError(f"exit plan: found {len(self.plan)} tokens, expected {len(x0)} as in the text.")
        return {"left": self.plan}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        left = state["left"] - 1
        return left <= 0, {"left": left}


def random_plan(evaluations: np.ndarray, sequences: tuple[int, ...], key: tuple) -> np.ndarray:
    """The same evaluations for other tokens, (G, N, T) -> (G, N, T).

    Within each group they are sorted and cut into T strata of N values; each sequence gets one value of every stratum
    and gives them to its tokens in random order, which depends on the number of the sequence. So the histogram over the
    text is exactly the same, and every sequence has nearly the histogram, and the cost, of the whole text. `key` names
    the random stream.
    """
    _, number, length = evaluations.shape
    plan = np.empty_like(evaluations)
    for group, values in enumerate(evaluations):
        strata = np.sort(values, axis=None).reshape(length, number)
        dealt = rng.stream(*key, group, "strata").permuted(strata, axis=1).T
        for row, sequence in enumerate(sequences):
            plan[group, row] = rng.stream(*key, group, sequence).permutation(dealt[row])
    return plan


def fixed_evaluations(evaluations: np.ndarray) -> np.ndarray:
    """As many evaluations per group, as equal over its tokens as whole numbers can be: (G, N, T) -> (G, N, T)."""
    groups, tokens = len(evaluations), evaluations[0].size
    least, more = np.divmod(evaluations.reshape(groups, -1).sum(axis=1, keepdims=True), tokens)
    return (least + (np.arange(tokens) < more)).reshape(evaluations.shape)


def plans(
    evaluations: np.ndarray, sequences: tuple[int, ...], draws: int, key: tuple
) -> Iterator[tuple[str, int, np.ndarray]]:
    """(reference, draw, plan (G, N, T)) of a criterion that took `evaluations` (G, N, T).

    `fixed`, whose tokens differ by at most one evaluation, is drawn once.
    """
    for draw in range(draws):
        yield RANDOM, draw, random_plan(evaluations, sequences, (*key, RANDOM, draw))
    yield FIXED, 0, random_plan(fixed_evaluations(evaluations), sequences, (*key, FIXED, 0))


def measure_cost_matched(
    evaluate: EvaluatePlanned, evaluations: Tensor, text: HeldOut, batch_size: int, draws: int, key: tuple
) -> Iterator[list[Row]]:
    """Rows of the table "exit_cost_matched" of one operating point, without its key; one list for each draw.

    `evaluations`, int64 (G, N, T) with G >= 1, are those of the criterion on the N sequences of `text`; `key` names the
    random streams.
    """
    measured: dict[bytes, Tensor] = {}  # plans that agree are evaluated once, such as those at full depth
    for reference, draw, plan in plans(evaluations.cpu().numpy(), text.sequences, draws, key):
        if plan.tobytes() not in measured:
            parts = zip(torch.from_numpy(plan).split(batch_size, dim=1), text.batches(batch_size), strict=True)
            losses = (cross_entropies(evaluate(part, batch), batch.targets).mean(1).cpu() for part, batch in parts)
            measured[plan.tobytes()] = torch.cat(list(losses))
        ce = measured[plan.tobytes()]
        means = plan.mean(axis=(0, 2)).tolist()  # per sequence
        point = {"reference": reference, "draw": draw}
        yield [point | row for row in text.rows(evaluations=means, ce=ce.tolist())]
