"""The cost and loss of exit criteria compared with an oracle, on frozen trajectories.

The states x^0 … x^K of a group are from the run at K loop steps of every group. What a token
predicts if it leaves with x^k is decoded as the model would continue with this token, while all
tokens before it keep their states, keys and values of the run. So a token's loss is a function of
its exit alone, and the best exit of every token is known: the budget oracle chooses one state per
token so that the mean loss is least at given mean evaluations. In the causal engine
(`twoscale.exits.parallel`), a token sees what earlier exits have changed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twoscale.base import InputError, meter
from twoscale.config import ExitsConfig
from twoscale.data.batches import HeldOut
from twoscale.dynamics.states import (
    Row,
    check_finite,
    loop_places,
    sequence_means,
    token_keys,
)
from twoscale.exits.contract import FrozenExits
from twoscale.exits.criteria import ExitCriterion, Fixed
from twoscale.exits.evaluation import make_criteria
from twoscale.exits.passes import Pass
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.kernels import attention
from twoscale.model.loss import cross_entropies
from twoscale.replay.oracle import PRICES, cheapest_exits, exit_costs, split_half

STREAMS = 8  # loop steps that are decoded at a time, which bounds the memory


@job_files(reads="criteria", writes="exit_regret oracle_frontier exit_reliability")
def run(job: CheckpointJob) -> None:
    """Write the tables "exit_regret", "oracle_frontier" and "exit_reliability"."""
    exits = job.config.exits
    checkpoint, text = job.checkpoint(exits.dtype), job.held_out(job.config.sequences)
    found = measure_regret(checkpoint, text, exits, job.config.oracle.batch_size)
    for table, rows in found.items():
        job.write(table, rows)


@dataclass(frozen=True)
class FrozenAttention:
    """Attention of S streams of the same sequences, of which stream 0 is the frozen run.

    A token of any stream attends to itself and, before it, to the tokens of stream 0. It is an
    `Attend`.
    """

    positions: Tensor  # (T,)
    tokens: Tensor | None  # (B, T)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (S, B, T, H, D) and k, v (S, B, T, G, D) -> (S, B, T, H, D)."""
        streams, batch, length = q.shape[:3]
        tokens = torch.ones(length, length, dtype=torch.bool, device=q.device)
        earlier = tokens.tril(-1)  # in stream 0
        itself = tokens.tril().triu()  # in the token's own stream
        mask = torch.cat([earlier, itself], dim=1)  # (T, 2 T)
        keys = _by_head(_after_frozen(k))
        values = _by_head(_after_frozen(v))
        attended = attention(_by_head(q), keys, values, mask)  # (S B, H, T, D)
        return attended.transpose(1, 2).unflatten(0, (streams, batch))


def _after_frozen(z: Tensor) -> Tensor:
    """Keys or values of stream 0, then of each stream: (S, B, T, G, D) -> (S, B, 2 T, G, D)."""
    frozen = z[:1].expand_as(z)
    return torch.cat([frozen, z], dim=2)


def _by_head(z: Tensor) -> Tensor:
    """(S, B, tokens, heads, D) -> (S B, heads, tokens, D)."""
    return z.flatten(0, 1).transpose(1, 2)


@dataclass(frozen=True)
class FrozenGroup:
    """One group of the run at full depth."""

    passing: Pass
    group: int
    states: Tensor  # x^0 … x^K of all tokens, (K + 1, B, T, C)

    def behind(self, exits: Tensor) -> Tensor:
        """The head's input if tokens leave one at a time with the states `exits`, (S, B, T, C)."""
        noise, attend = self.passing.noise, self.passing.attend
        streams = replace(
            self.passing,
            attend=FrozenAttention(attend.positions, attend.tokens),
            # every stream has the noise of the run
            noise=lambda group, k, like: noise(group, k, like[0]).expand_as(like),
        )
        # stream 0 leaves with x^K as in the run; its result is known
        return streams.after(self.group, torch.cat([self.states[-1:], exits]))[1:]

    def losses(self, targets: Tensor) -> Tensor:
        """Loss in nats of each exit k = 0 … K, (K + 1, B, T), for targets (B, T)."""
        losses = []
        for exits in self.states.split(STREAMS):
            for hidden in self.behind(exits):
                logits = self.passing.model.readout(hidden)
                losses.append(cross_entropies(logits, targets))
        return torch.stack(losses)

    def exits(self, criterion: ExitCriterion, readout: str) -> FrozenExits:
        """When a criterion lets each token leave (B, T); `readout` is that of the config."""
        return self.passing.exits(self.group, self.states, criterion, readout, self._one_behind)

    def _one_behind(self, x: Tensor) -> Tensor:
        """`behind` for one state (B, T, C) of each token."""
        return self.behind(x[None])[0]


def frozen_groups(passing: Pass, tokens: Tensor) -> Iterator[FrozenGroup]:
    """Each group of the run on token ids (B, T), with the states of one at a time."""
    for group, states in passing.groups(tokens):
        yield FrozenGroup(passing, group, torch.stack(states))


@torch.inference_mode()
def measure_regret(
    checkpoint: LoadedCheckpoint, text: HeldOut, exits: ExitsConfig, batch_size: int
) -> dict[str, list[Row]]:
    """Rows of "exit_regret", "oracle_frontier" and "exit_reliability" without `run`, by name.

    Every operating point of `exits`, and fixed loops at every count; every loop step has its own
    keys and values. A weighted mean is no state of a trajectory, so criteria that keep one are left
    out. Raises InputError for a loss that is not finite.
    """
    if exits.max_loops < 2:
        raise InputError(
            "config key exits.max_loops: found 1, expected at least 2 loop steps to choose from."
        )
    fixed = {("fixed", k): Fixed(k) for k in range(1, exits.max_loops + 1)}
    criteria = [
        (point, criterion)
        for point, criterion in (make_criteria(exits) | fixed).items()
        if criterion.keeps != "weighted"
    ]
    labels = checkpoint.model.config.group_labels
    regret: list[Row] = []
    frontier: list[Row] = []
    halves: list[Row] = []
    with meter("regret", len(labels) * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(batch_size):
            tokens = batch.inputs.to(checkpoint.device)
            passing = Pass.of(checkpoint, tokens, batch.sequences, exits.max_loops)
            for frozen in frozen_groups(passing, tokens):
                label = labels[frozen.group]
                losses = frozen.losses(batch.targets)  # (K + 1, B, T)
                places = loop_places(label, len(losses))
                check_finite(losses, token_keys(0, batch), places, "a loss of")
                for (name, threshold), criterion in criteria:
                    loop_steps, evaluations, _ = frozen.exits(criterion, exits.readout)
                    point = {"group": label, "criterion": name, "threshold": float(threshold)}
                    regret += _rows(point, batch, losses, loop_steps, evaluations)
                on_cpu = losses.cpu().numpy()
                costs = torch.from_numpy(exit_costs(len(losses)))
                for price in PRICES:
                    chosen = torch.from_numpy(cheapest_exits(on_cpu, price))  # (B, T)
                    point = {"group": label, "price": price}
                    frontier += _rows(point, batch, losses.cpu(), chosen, costs[chosen])
                columns = {
                    name: torch.from_numpy(values) for name, values in split_half(on_cpu).items()
                }
                halves += sequence_means({"group": label}, batch, columns)
                bar.update(batch.inputs.numel())
    return {"exit_regret": regret, "oracle_frontier": frontier, "exit_reliability": halves}


def _rows(
    point: Mapping[str, object],
    batch: HeldOut,
    losses: Tensor,
    loop_steps: Tensor,
    evaluations: Tensor,
) -> Iterator[Row]:
    """Rows with the key `point` for exits after these loop steps (B, T) at these evaluations."""
    ce = losses.gather(0, loop_steps[None])[0]
    return sequence_means(point, batch, {"evaluations": evaluations, "ce": ce})
