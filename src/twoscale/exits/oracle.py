"""Exits with hindsight: all states of whole sequences, what each of them predicts, and an oracle that chooses.

`Pass` runs whole sequences stage by stage, so that all tokens may leave a group with any of its states. The oracle
knows every later loop step of a token. No criterion can know what it knows, so it bounds what exits per token can save.
Two oracles: one leaves as soon as a token is converged, the other buys loop steps where they reduce the loss most.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale.exits.contract import stages_behind
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import Attend, CausalAttention, LoopedModel, Noise, Stage, last
from twoscale.model.loss import cross_entropies, entropies, ranks

LOGITS_AT_A_TIME = 2**24  # limits the memory of the predictions


@dataclass(frozen=True)
class Pass:
    """Whole sequences on their way through a model, stage by stage, with `loops` loop steps of every group."""

    model: LoopedModel
    loops: int
    noise: Noise
    attend: Attend

    @classmethod
    def of(cls, checkpoint: LoadedCheckpoint, tokens: Tensor, sequences: Sequence[int], loops: int) -> "Pass":
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
    """Cross-entropy and entropy in nats, rank of the right token, predicted token: (B, T, C), ids (B, T) -> (B, T)."""
    rows = max(1, LOGITS_AT_A_TIME // model.config.vocab_size)
    parts: list[dict[str, Tensor]] = []
    for part, ids in zip(hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True):
        logits = model.readout(part)
        ce = cross_entropies(logits[None], ids[None])[0]
        ranked = {"rank": ranks(logits, ids), "predicted": logits.argmax(-1)}
        parts.append({"ce": ce, "entropy": entropies(logits), **ranked})
    return {name: torch.cat([part[name] for part in parts]).unflatten(0, targets.shape) for name in parts[0]}


def converged_within(losses: Tensor, tolerance: float) -> Tensor:
    """First index along the first axis from which a loss stays at most `tolerance` above the last: (L, …) -> (…) int64.

    A loss below the last one counts as converged.
    """
    agrees = losses <= losses[-1] + tolerance
    return len(agrees) - agrees.to(torch.int64).flip(0).cumprod(0).sum(0)


def split_half(losses: Tensor) -> dict[str, Tensor]:
    """What `studies.arena.draw.reliability` averages, for losses of x^0, x^1, …: (L, B, T) -> (B, T) each.

    The best depth of each token among odd and among even loop steps, their squares, their product, and the product with
    the best even depth of another token. If the halves correlate only by chance, an oracle gains from noise.
    """
    odd, even = (2 * losses[first::2].argmin(0).double() + first for first in (1, 2))
    other = even.flatten().roll(even.numel() // 2).view_as(even)
    pairs = {"odd_odd": odd * odd, "even_even": even * even, "odd_even": odd * even, "odd_other": odd * other}
    return {"odd": odd, "even": even, **pairs}


def exit_costs(states: int, device: torch.device) -> Tensor:
    """Evaluations that lead to each of the states x^0, x^1, …: int64 (states,).

    1 for x^0, because no criterion can decide before the first evaluation.
    """
    return torch.arange(states, device=device).clamp_(min=1)


def cheapest_exits(losses: Tensor, price: float) -> Tensor:
    """The exit of each token with the least loss + price x evaluations, for losses of x^0, x^1, …: (L, …) -> (…) int64.

    price: nats per evaluation. Of exits that cost the same the first one is taken. Over all prices these are the lower
    convex hull of what exits per token can reach: no choice of exits with the same mean evaluations has a lower loss
    than a point between two of them.
    """
    costs = exit_costs(len(losses), losses.device).to(losses.dtype)
    return (losses + price * costs.view(-1, *(1,) * (losses.dim() - 1))).argmin(0)
