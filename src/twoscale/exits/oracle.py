"""An oracle of exits, with hindsight: what exits per token can save at most.

An oracle knows every later loop step of a token, so it buys loop steps where they reduce the loss
most. `Pass` runs whole sequences stage by stage for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale.exits.contract import stages_after
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import Attend, CausalAttention, LoopedModel, Noise, Stage, last
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
        injected = self.model.project_input(group, entered)
        state = self.model.init_state(group, entered, self.noise)  # x^0
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

    def after(self, group: int, state: Tensor) -> Tensor:
        """The head's input if all tokens leave a group with the states (B, T, C)."""
        return self.run(stages_after(self.model, group), self.model.finish(group, state))

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
