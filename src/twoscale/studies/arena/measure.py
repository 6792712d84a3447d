"""The regret of exit criteria: their cost and loss compared with an oracle, on frozen trajectories.

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
from twoscale.dynamics.states import check_finite, loop_places, token_keys
from twoscale.exits.contract import exit_steps, is_sequential, make_readout
from twoscale.exits.cost_matched import Row
from twoscale.exits.criteria import ExitCriterion, Fixed
from twoscale.exits.evaluation import make_criteria
from twoscale.exits.oracle import Pass
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint
from twoscale.model.kernels import attention
from twoscale.model.loss import cross_entropies
from twoscale.replay.oracle import PRICES, cheapest_exits, exit_costs, split_half

STREAMS = 8  # loop steps that are decoded at a time, which bounds the memory


@job_files(reads="criteria", writes="exit_regret oracle_frontier exit_reliability")
def run(job: CheckpointJob) -> None:
    """Write the tables "exit_regret", "oracle_frontier" and "exit_reliability"."""
    config, exits = job.config, job.config.exits
    checkpoint, text = job.checkpoint(exits.dtype), job.held_out(config.sequences)
    for table, rows in measure_regret(checkpoint, text, exits, config.oracle.batch_size).items():
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
        tokens = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
        mask = torch.cat(
            [tokens.tril(-1), tokens.tril().triu()], dim=1
        )  # (T, 2 T): those before, the token itself
        seen = (torch.cat([z[:1].expand_as(z), z], dim=2) for z in (k, v))  # (S, B, 2 T, G, D)
        queries, keys, values = (z.flatten(0, 1).transpose(1, 2) for z in (q, *seen))
        return attention(queries, keys, values, mask).transpose(1, 2).unflatten(0, q.shape[:2])


@dataclass(frozen=True)
class FrozenGroup:
    """One group of the run at full depth."""

    passing: Pass
    group: int
    states: Tensor  # x^0 … x^K of all tokens, (K + 1, B, T, C)

    def behind(self, exits: Tensor) -> Tensor:
        """The head's input if tokens leave one at a time, with the states `exits`: (S, B, T, C) ->
        (S, B, T, C).
        """
        noise = self.passing.noise
        streams = replace(
            self.passing,
            attend=FrozenAttention(self.passing.attend.positions, self.passing.attend.tokens),
            noise=lambda group, k, like: noise(group, k, like[0]).expand_as(like),
        )
        return streams.after(self.group, torch.cat([self.states[-1:], exits]))[1:]

    def losses(self, targets: Tensor) -> Tensor:
        """Loss in nats of each exit k = 0 … K, (K + 1, B, T), for targets (B, T)."""
        readout = self.passing.model.readout
        hidden = (exit for part in self.states.split(STREAMS) for exit in self.behind(part))
        return torch.stack([cross_entropies(readout(each), targets) for each in hidden])

    def exits(self, criterion: ExitCriterion, readout: str) -> tuple[Tensor, Tensor]:
        """Loop steps and evaluations (B, T) with which a criterion lets each token leave;
        `readout`: of the config.
        """
        criterion, rows = (
            criterion.of_group(self.group),
            self.states.flatten(1, 2),
        )  # (K + 1, B * T, C)
        model = self.passing.model
        read = make_readout(model, criterion, readout, self.group)
        if is_sequential(criterion, readout) and self.group == len(model.config.groups) - 1:
            # the remaining layers are decoded in parallel, too
            read = lambda x: model.readout(self.behind(x.view_as(self.states[:1]))[0]).flatten(0, 1)  # noqa: E731
        evaluations, left = exit_steps(rows, criterion, read)
        loop_steps = evaluations - (left & (criterion.keeps == "previous")).long()
        return loop_steps.view(self.states.shape[1:3]), evaluations.view(self.states.shape[1:3])


def frozen_groups(passing: Pass, tokens: Tensor) -> Iterator[FrozenGroup]:
    """Each group of the run on token ids (B, T), in the order of the model; the states of one are
    alive at a time.
    """
    for group, entered in passing.entering(tokens):
        yield FrozenGroup(
            passing, group, torch.stack(list(passing.states(group, entered, passing.loops)))
        )


@torch.inference_mode()
def measure_regret(
    checkpoint: LoadedCheckpoint, text: HeldOut, exits: ExitsConfig, batch_size: int
) -> dict[str, list[Row]]:
    """Rows of the tables "exit_regret", "oracle_frontier" and "exit_reliability" without their
    column `run`, by name.

    Every operating point of `exits`, and fixed loops at every count; every loop step has its own
    keys and values. A weighted mean is no state of a trajectory, so criteria that keep one are left
    out. Raises InputError for a loss that is not finite.
    """
    if exits.max_loops < 2:
        raise InputError(
            "config key exits.max_loops: found 1, expected at least 2 loop steps to choose from."
        )
    criteria = make_criteria(exits) | {
        ("fixed", k): Fixed(k) for k in range(1, exits.max_loops + 1)
    }
    criteria = {
        point: criterion for point, criterion in criteria.items() if criterion.keeps != "weighted"
    }
    labels = checkpoint.model.config.group_labels
    found: dict[str, list[Row]] = {"exit_regret": [], "oracle_frontier": [], "exit_reliability": []}
    with meter("regret", len(labels) * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(batch_size):
            tokens = batch.inputs.to(checkpoint.device)
            passing = Pass.of(checkpoint, tokens, batch.sequences, exits.max_loops)
            for frozen in frozen_groups(passing, tokens):
                losses, label = frozen.losses(batch.targets), labels[frozen.group]
                check_finite(
                    losses, token_keys(0, batch), loop_places(label, len(losses)), "a loss of"
                )
                group = {"group": label}
                for (name, threshold), criterion in criteria.items():
                    loop_steps, evaluations = frozen.exits(criterion, exits.readout)
                    point = group | {"criterion": name, "threshold": float(threshold)}
                    ce = losses.gather(0, loop_steps[None])[0]
                    found["exit_regret"] += _rows(point, batch, evaluations=evaluations, ce=ce)
                on_cpu = losses.cpu().numpy()
                costs = torch.from_numpy(exit_costs(len(losses)))
                for price in PRICES:
                    chosen = torch.from_numpy(cheapest_exits(on_cpu, price))  # (B, T)
                    point = group | {"price": price}
                    ce = losses.cpu().gather(0, chosen[None])[0]
                    found["oracle_frontier"] += _rows(
                        point, batch, evaluations=costs[chosen], ce=ce
                    )
                halves = split_half(on_cpu)
                columns = {name: torch.from_numpy(values) for name, values in halves.items()}
                found["exit_reliability"] += _rows(group, batch, **columns)
                bar.update(batch.inputs.numel())
    return found


def _rows(point: Mapping[str, object], batch: HeldOut, **columns: Tensor) -> Iterator[Row]:
    """Means over the tokens of each sequence of columns (B, T)."""
    means = {name: values.double().mean(-1).tolist() for name, values in columns.items()}
    return ({**point, **row} for row in batch.rows(**means))
