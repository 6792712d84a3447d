"""Whole sequences on their way through a model: what it predicts from each state of a loop, and
when exit criteria would let each token leave.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale.exits.contract import (
    FrozenExits,
    frozen_exits,
    is_sequential,
    make_readout,
    stages_after,
)
from twoscale.exits.criteria import ExitCriterion
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import (
    Attend,
    CausalAttention,
    LoopedModel,
    Noise,
    Stage,
    last,
    loop_states,
)
from twoscale.model.loss import cross_entropies, entropies, ranks

LOGITS_AT_A_TIME = 2**24  # limits the memory of the predictions


@dataclass(frozen=True)
class Pass:
    """Whole sequences on their way through a model, stage by stage.

    Every group takes `loops` loop steps.
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
        return loop_states(self.model, group, entered, loops, lambda _: self.attend, self.noise)

    def run(self, stages: Iterable[Stage], hidden: Tensor) -> Tensor:
        """Hidden states (B, T, C) after these stages."""
        for stage in stages:
            if stage.is_group:
                state = last(self.states(stage.index, hidden, self.loops))
                hidden = self.model.finish(stage.index, state)
            else:
                hidden = self.model.unlooped_layer(stage.index, hidden, self.attend)
        return hidden

    def after(self, group: int, state: Tensor) -> Tensor:
        """The head's input if all tokens leave a group with the states (B, T, C)."""
        return self.run(stages_after(self.model, group), self.model.finish(group, state))

    def exits(
        self,
        group: int,
        states: Sequence[Tensor] | Tensor,
        criterion: ExitCriterion,
        readout: str,
        after: Callable[[Tensor], Tensor],
    ) -> FrozenExits:
        """Exits (B, T) of the tokens on the states x^0 … x^K (B, T, C) of a group.

        `readout` is that of the config. Under `remaining_layers`, `after` gives the head's input
        (B, T, C) if tokens leave the last group with the states (B, T, C).
        """
        model, shape = self.model, states[0].shape
        criterion = criterion.of_group(group)
        read = make_readout(model, criterion, readout, group)
        # the whole context is at hand, so all tokens are decided at once
        if is_sequential(criterion, readout) and group == len(model.config.groups) - 1:

            def read(x: Tensor) -> Tensor:
                return model.readout(after(x.view(shape))).flatten(0, 1)  # (B T, C) -> (B T, V)

        exits = frozen_exits([state.flatten(0, 1) for state in states], criterion, read)
        return FrozenExits(*(values.view(shape[:2]) for values in exits))

    def groups(self, tokens: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
        """Each group with its states x^0 … x^loops (B, T, C), for token ids (B, T)."""
        loops = [self.loops] * len(self.model.config.groups)
        for stage in self.model.trace(tokens, loops, self.noise):
            if stage.stage is not None and stage.stage.is_group:
                yield stage.stage.index, stage.states

    def entering(self, tokens: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each group with the hidden states that enter it (B, T, C), for token ids (B, T)."""
        hidden = self.model.embed(tokens, self.attend.positions)
        for stage in self.model.stages:
            if stage.is_group:
                yield stage.index, hidden
            hidden = self.run([stage], hidden)


def measure_tokens(model: LoopedModel, hidden: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Cross-entropy and entropy in nats, rank of the right token, predicted token: (B, T) each.

    `hidden` (B, T, C) are inputs of the head, `targets` (B, T) token ids.
    """
    # logits of all tokens at once may not fit into memory
    rows = max(1, LOGITS_AT_A_TIME // model.config.vocab_size)
    states = hidden.flatten(0, 1).split(rows)  # (rows, C) each
    right = targets.flatten().split(rows)  # (rows,) each
    found: dict[str, list[Tensor]] = {"ce": [], "entropy": [], "rank": [], "predicted": []}
    for part, ids in zip(states, right, strict=True):
        logits = model.readout(part)  # (rows, V)
        found["ce"].append(cross_entropies(logits[None], ids[None])[0])
        found["entropy"].append(entropies(logits))
        found["rank"].append(ranks(logits, ids))
        found["predicted"].append(logits.argmax(-1))
    return {name: torch.cat(values).view_as(targets) for name, values in found.items()}
