"""Cost-matched exits: what a criterion is compared with, exits of the same cost without knowledge.

A criterion is worth its checks only if it knows which tokens to spend loop steps on. Cost-matched
exits take exactly the evaluations that the criterion took on the same text, in every group, and run
through the same causal engine:

- `random`: the criterion's own counts of evaluations, so the same histogram, given to tokens at
  random;
- `fixed`: the same count for all tokens. Where the mean is no whole number, as many tokens as
  needed take one evaluation more, drawn at random.

They keep the state of their last evaluation, also where the criterion discards that state
(`keeps`).
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from twoscale import rng
from twoscale.data.batches import HeldOut
from twoscale.exits.criteria import ExitCriterion, State
from twoscale.exits.references import FIXED, RANDOM, fixed_evaluations
from twoscale.model.interface import Readout
from twoscale.model.loss import cross_entropies

Row = dict[str, object]
# evaluations (G, B, T) and B held-out sequences -> logits (B, T, V)
EvaluatePrescribed = Callable[[Tensor, HeldOut], Tensor]


class PrescribedExits(ExitCriterion):
    """Exits of a whole text after prescribed evaluations, int64 (G, B, T), at least 1 each.

    It holds the evaluations of every token, so it works in the parallel engine only. A token keeps
    its last state.
    """

    def __init__(self, evaluations: Tensor) -> None:
        super().__init__(threshold=float("nan"))
        self.evaluations = evaluations

    def of_group(self, group: int) -> "PrescribedExits":
        return PrescribedExits(self.evaluations[group].flatten())

    def start(self, x0: Tensor) -> State:
        return {"left": self.evaluations}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        left = state["left"] - 1
        return left <= 0, {"left": left}


def random_exits(evaluations: np.ndarray, sequences: tuple[int, ...], key: tuple) -> np.ndarray:
    """The same evaluations for other tokens, (G, N, T) -> (G, N, T).

    Within each group they are sorted and cut into T strata of N values; each sequence gets one
    value of every stratum and gives them to its tokens in random order, which depends on the number
    of the sequence. So the histogram over the text is exactly the same, and every sequence has
    nearly the histogram, and the cost, of the whole text. `key` names the random stream.
    """
    _, number, length = evaluations.shape
    drawn = np.empty_like(evaluations)
    for group, values in enumerate(evaluations):
        strata = np.sort(values, axis=None).reshape(length, number)  # (T, N)
        dealt = rng.stream(*key, group, "strata").permuted(strata, axis=1).T  # (N, T)
        for row, sequence in enumerate(sequences):
            drawn[group, row] = rng.stream(*key, group, sequence).permutation(dealt[row])
    return drawn


def cost_matched_exits(
    evaluations: np.ndarray, sequences: tuple[int, ...], draws: int, key: tuple
) -> Iterator[tuple[str, int, np.ndarray]]:
    """(reference, draw, evaluations (G, N, T)) for a criterion that took `evaluations` (G, N, T).

    `fixed`, whose tokens differ by at most one evaluation, is drawn once.
    """
    for draw in range(draws):
        yield RANDOM, draw, random_exits(evaluations, sequences, (*key, RANDOM, draw))
    yield FIXED, 0, random_exits(fixed_evaluations(evaluations), sequences, (*key, FIXED, 0))


def measure_cost_matched(
    evaluate: EvaluatePrescribed,
    evaluations: Tensor,
    text: HeldOut,
    batch_size: int,
    draws: int,
    key: tuple,
) -> Iterator[list[Row]]:
    """Rows of the table "exit_cost_matched" of one operating point, a list for each draw.

    `evaluations`, int64 (G, N, T) with G >= 1, are those of the criterion on the N sequences of
    `text`; `key` names the random streams. The key columns of the operating point are missing.
    """
    # exits that agree are evaluated once, such as those at full depth: bytes -> losses (N,)
    known: dict[bytes, Tensor] = {}
    taken = evaluations.cpu().numpy()
    for reference, draw, drawn in cost_matched_exits(taken, text.sequences, draws, key):
        content = drawn.tobytes()
        if content not in known:
            losses = []
            parts = torch.from_numpy(drawn).split(batch_size, dim=1)
            for part, batch in zip(parts, text.batches(batch_size), strict=True):
                logits = evaluate(part, batch)
                losses.append(cross_entropies(logits, batch.targets).mean(1).cpu())  # (B,)
            known[content] = torch.cat(losses)
        columns = {
            "evaluations": drawn.mean(axis=(0, 2)).tolist(),  # over groups and tokens: (N,)
            "ce": known[content].tolist(),
        }
        yield [{"reference": reference, "draw": draw} | row for row in text.rows(**columns)]
