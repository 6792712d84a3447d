"""Exits on frozen trajectories: one token leaves a group early, everything else stays as at full depth.

The states x^0 … x^K of a group are from the run at K loop steps of every group. What a token predicts if it leaves
with x^k is decoded as the model would continue with this token, while all tokens before it keep their states, keys and
values of the run. So a token's loss is a function of its exit alone, and the best exit of every token is known.

This differs from the lens (`twoscale.studies.depth`), where all tokens leave at k, and from the causal engine
(`twoscale.exits.parallel`), where a token sees what earlier exits have changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twoscale.exits.contract import GivenStates, is_sequential, make_readout
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.oracle import Pass
from twoscale.model.interface import Readout
from twoscale.model.kernels import attention
from twoscale.model.loss import cross_entropies

STREAMS = 8  # loop steps that are decoded at a time, which bounds the memory


@dataclass(frozen=True)
class FrozenAttention:
    """Attention of S streams of the same sequences, of which stream 0 is the frozen run.

    A token of any stream attends to itself and, before it, to the tokens of stream 0. It is an `Attend`.
    """

    positions: Tensor  # (T,)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (S, B, T, H, D) and k, v (S, B, T, G, D) -> (S, B, T, H, D)."""
        tokens = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
        mask = torch.cat([tokens.tril(-1), tokens.tril().triu()], dim=1)  # (T, 2 T): those before, the token itself
        seen = (torch.cat([z[:1].expand_as(z), z], dim=2) for z in (k, v))  # (S, B, 2 T, G, D)
        queries, keys, values = (z.flatten(0, 1).transpose(1, 2) for z in (q, *seen))
        return attention(queries, keys, values, mask).transpose(1, 2).unflatten(0, q.shape[:2])


@dataclass(frozen=True)
class FrozenGroup:
    """One group of the run at full depth.

    Attributes:
        passing: The run.
        group: Index of the group.
        states: x^0 … x^K of all tokens, (K + 1, B, T, C).
    """

    passing: Pass
    group: int
    states: Tensor

    def behind(self, exits: Tensor) -> Tensor:
        """The head's input if tokens leave one at a time, with the states `exits`: (S, B, T, C) -> (S, B, T, C)."""
        noise = self.passing.noise
        streams = replace(
            self.passing,
            attend=FrozenAttention(self.passing.attend.positions),
            noise=lambda group, k, like: noise(group, k, like[0]).expand_as(like),
        )
        return streams.behind(self.group, torch.cat([self.states[-1:], exits]))[1:]

    def decode(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Loss in nats and most likely next token of each exit k = 0 … K, (K + 1, B, T) each, for targets (B, T)."""
        losses, predictions = [], []
        for exits in self.states.split(STREAMS):
            for hidden in self.behind(exits):
                logits = self.passing.model.readout(hidden)
                losses.append(cross_entropies(logits, targets))
                predictions.append(logits.argmax(-1))
        return torch.stack(losses), torch.stack(predictions)

    def exits(self, criterion: ExitCriterion, readout: str) -> tuple[Tensor, Tensor]:
        """Loop steps and evaluations (B, T) with which a criterion lets each token leave; `readout`: of the config."""
        criterion, rows = criterion.of_group(self.group), self.states.flatten(1, 2)  # (K + 1, B * T, C)
        given = GivenStates(criterion, rows[0], self._readout(criterion, readout))
        for x in rows[1:]:
            given.update(x)
            if given.evaluations.all():
                break
        loop_steps, evaluations = given.exits()
        return loop_steps.view(self.states.shape[1:3]), evaluations.view(self.states.shape[1:3])

    def _readout(self, criterion: ExitCriterion, readout: str) -> Readout:
        """Function from states to predictions for the criterion; remaining layers are decoded in parallel, too."""
        model = self.passing.model
        if is_sequential(criterion, readout) and self.group == len(model.config.groups) - 1:
            return lambda x: model.readout(self.behind(x.view_as(self.states[:1]))[0]).flatten(0, 1)
        return make_readout(model, criterion, readout, self.group)


def frozen_groups(passing: Pass, tokens: Tensor) -> Iterator[FrozenGroup]:
    """Each group of the run on token ids (B, T), in the order of the model; the states of one are alive at a time."""
    for group, entered in passing.entering(tokens):
        yield FrozenGroup(passing, group, torch.stack(list(passing.states(group, entered, passing.loops))))
