"""What exit criteria are compared with: exits of the same cost without knowledge, and an oracle's
with hindsight.

A criterion is worth its checks only if it knows which tokens to spend loop steps on. Cost-matched
exits take exactly the evaluations that the criterion took on the same text, in every group, and run
through the same causal engine:

- `random`: the criterion's own counts of evaluations, so the same histogram, given to tokens at
  random;
- `fixed`: the same count for all tokens. Where the mean is no whole number, as many tokens as
  needed take one evaluation more, drawn at random.

They keep the state of their last evaluation, also where the criterion discards that state
(`keeps`).

An oracle knows every later loop step of a token, so it bounds what exits per token can save: it
buys loop steps where they reduce the loss most. `Pass` runs whole sequences stage by stage for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twoscale import rng
from twoscale.data.batches import HeldOut
from twoscale.exits.contract import stages_behind
from twoscale.exits.criteria import ExitCriterion, State
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import (
    Attend,
    CausalAttention,
    LoopedModel,
    Noise,
    Readout,
    Stage,
    last,
)
from twoscale.model.loss import cross_entropies, entropies, ranks

RANDOM, FIXED = "random", "fixed"
Row = dict[str, object]
EvaluatePlanned = Callable[
    [Tensor, HeldOut], Tensor
]  # plan (G, B, T), B held-out sequences -> logits (B, T, V)


class Planned(ExitCriterion):
    """Exits of a whole text after planned evaluations, int64 (G, B, T), at least 1 each.

    It holds the plan of every token, so it works in the parallel engine only. The token keeps its
    last state.
    """

    def __init__(self, plan: Tensor) -> None:
        super().__init__(threshold=float("nan"))
        self.plan = plan

    def of_group(self, group: int) -> "Planned":
        return Planned(self.plan[group].flatten())

    def start(self, x0: Tensor) -> State:
        if len(x0) != len(self.plan):
            raise ValueError(
                f"exit plan: found {len(self.plan)} tokens, expected {len(x0)} as in the text."
            )
        return {"left": self.plan}

    def update(self, state: State, x_new: Tensor, readout: Readout) -> tuple[Tensor, State]:
        left = state["left"] - 1
        return left <= 0, {"left": left}


def random_plan(evaluations: np.ndarray, sequences: tuple[int, ...], key: tuple) -> np.ndarray:
    """The same evaluations for other tokens, (G, N, T) -> (G, N, T).

    Within each group they are sorted and cut into T strata of N values; each sequence gets one
    value of every stratum and gives them to its tokens in random order, which depends on the number
    of the sequence. So the histogram over the text is exactly the same, and every sequence has
    nearly the histogram, and the cost, of the whole text. `key` names the random stream.
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
    """As many evaluations per group, as equal over its tokens as whole numbers can be: (G, N, T) ->
    (G, N, T).
    """
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
    evaluate: EvaluatePlanned,
    evaluations: Tensor,
    text: HeldOut,
    batch_size: int,
    draws: int,
    key: tuple,
) -> Iterator[list[Row]]:
    """Rows of the table "exit_cost_matched" of one operating point, without its key; one list for
    each draw.

    `evaluations`, int64 (G, N, T) with G >= 1, are those of the criterion on the N sequences of
    `text`; `key` names the random streams.
    """
    measured: dict[
        bytes, Tensor
    ] = {}  # plans that agree are evaluated once, such as those at full depth
    for reference, draw, plan in plans(evaluations.cpu().numpy(), text.sequences, draws, key):
        if (content := plan.tobytes()) not in measured:
            parts = zip(
                torch.from_numpy(plan).split(batch_size, dim=1),
                text.batches(batch_size),
                strict=True,
            )
            losses = (
                cross_entropies(evaluate(part, batch), batch.targets).mean(1).cpu()
                for part, batch in parts
            )
            measured[content] = torch.cat(list(losses))
        per_sequence = {
            "evaluations": plan.mean(axis=(0, 2)).tolist(),
            "ce": measured[content].tolist(),
        }
        yield [{"reference": reference, "draw": draw} | row for row in text.rows(**per_sequence)]


LOGITS_AT_A_TIME = 2**24  # limits the memory of the predictions


@dataclass(frozen=True)
class Pass:
    """Whole sequences on their way through a model, stage by stage, with `loops` loop steps of
    every group.
    """

    model: LoopedModel
    loops: int
    noise: Noise
    attend: Attend

    @classmethod
    def of(
        cls, checkpoint: LoadedCheckpoint, tokens: Tensor, sequences: Sequence[int], loops: int
    ) -> "Pass":
        """For token ids (B, T) with the noise of the held-out sequences of these numbers."""
        return cls(checkpoint.model, loops, checkpoint.noise(sequences), CausalAttention.of(tokens))

    def states(self, group: int, entered: Tensor, loops: int) -> Iterator[Tensor]:
        """x^0 … x^loops of a group that (B, T, C) enters, one after another."""
        injected = self.model.project_input(group, entered)
        state = self.model.init_state(group, entered, self.noise)
        yield state
        for k in range(loops):
            noisy = self.model.add_noise(group, k, state, self.noise)
            state = self.model.recur(group, k, noisy, injected, self.attend)
            yield state

    def run(self, stages: Iterable[Stage], hidden: Tensor) -> Tensor:
        """Hidden states (B, T, C) after these stages."""
        for stage in stages:
            if stage.is_group:
                state = last(self.states(stage.index, hidden, self.loops))
                hidden = self.model.finish(stage.index, state)
            else:
                hidden = self.model.unlooped_layer(stage.index, hidden, self.attend)
        return hidden

    def behind(self, group: int, state: Tensor) -> Tensor:
        """The head's input if all tokens leave a group with the states (B, T, C)."""
        return self.run(stages_behind(self.model, group), self.model.finish(group, state))

    def entering(self, tokens: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each group with the hidden states that enter it (B, T, C), for token ids (B, T)."""
        hidden = self.model.embed(tokens, self.attend.positions)
        for stage in self.model.stages:
            if stage.is_group:
                yield stage.index, hidden
            hidden = self.run([stage], hidden)


def measure_tokens(model: LoopedModel, hidden: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Cross-entropy and entropy in nats, rank of the right token, predicted token: (B, T, C), ids
    (B, T) -> (B, T).
    """
    rows = max(1, LOGITS_AT_A_TIME // model.config.vocab_size)
    parts: list[dict[str, Tensor]] = []
    for part, ids in zip(
        hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True
    ):
        logits = model.readout(part)
        ce = cross_entropies(logits[None], ids[None])[0]
        ranked = {"rank": ranks(logits, ids), "predicted": logits.argmax(-1)}
        parts.append({"ce": ce, "entropy": entropies(logits), **ranked})
    return {
        name: torch.cat([part[name] for part in parts]).unflatten(0, targets.shape)
        for name in parts[0]
    }


def split_half(losses: Tensor) -> dict[str, Tensor]:
    """What `studies.arena.draw.reliability` averages, for losses of x^0, x^1, …: (L, B, T) -> (B,
    T) each.

    The best depth of each token among odd and among even loop steps, their squares, their product,
    and the product with the best even depth of another token. If the halves correlate only by
    chance, an oracle gains from noise.
    """
    odd, even = (2 * losses[first::2].argmin(0).double() + first for first in (1, 2))
    other = even.flatten().roll(even.numel() // 2).view_as(even)
    pairs = {
        "odd_odd": odd * odd,
        "even_even": even * even,
        "odd_even": odd * even,
        "odd_other": odd * other,
    }
    return {"odd": odd, "even": even, **pairs}


def exit_costs(states: int, device: torch.device) -> Tensor:
    """Evaluations (states,) that lead to each of x^0, x^1, …: 1 for x^0, as nothing decides before
    the first one.
    """
    return torch.arange(states, device=device).clamp_(min=1)


def cheapest_exits(losses: Tensor, price: float) -> Tensor:
    """The exit of each token with the least loss + price x evaluations, for losses of x^0, x^1, …:
    (L, …) -> (…) int64.

    price: nats per evaluation. Of exits that cost the same the first one is taken. Over all prices
    these are the lower convex hull of what exits per token can reach: no choice of exits with the
    same mean evaluations has a lower loss than a point between two of them.
    """
    costs = exit_costs(len(losses), losses.device).to(losses.dtype)
    return (losses + price * costs.view(-1, *(1,) * (losses.dim() - 1))).argmin(0)
