"""The regret of exit criteria: their cost and loss compared with an oracle, on frozen trajectories.

Groups are measured one at a time, with all loop steps in the others. Two oracles know every loop step of a token:

- *converged* leaves at the first state from which the loss stays within a tolerance of that at full depth, or from
  which the prediction stays;
- *budget* chooses one state per token so that the mean loss is least at given mean evaluations.

On the same trajectories no criterion can spend less than either where it does as well.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twoscale.base import meter
from twoscale.config import ExitsConfig
from twoscale.data.batches import HeldOut
from twoscale.exits.cost_matched import Row
from twoscale.exits.criteria import ExitCriterion, Fixed
from twoscale.exits.evaluation import OperatingPoint, make_criteria
from twoscale.exits.oracle import Pass, cheapest_exits, converged_from, converged_within, exit_costs
from twoscale.exits.probe import Probe, open_probe
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.studies.arena.frozen import FrozenGroup, frozen_groups

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob
    from twoscale.studies.arena.config import OracleConfig

# Prices of an evaluation in nats, 8 per decade: those at which the budget oracle is measured.
PRICES = tuple(10 ** (exponent / 8) for exponent in range(-48, 9))


def run(job: "CheckpointJob") -> None:
    """Write the tables "exit_regret" and "oracle_frontier"."""
    config, exits = job.config, job.config.exits
    checkpoint, text = job.checkpoint(exits.dtype), job.held_out(config.sequences)
    probe = open_probe(job.optional("probe"), checkpoint)
    for table, rows in measure_regret(checkpoint, text, exits, config.oracle, probe).items():
        job.write(table, rows)


@torch.inference_mode()
def measure_regret(
    checkpoint: LoadedCheckpoint, text: HeldOut, exits: ExitsConfig, oracle: "OracleConfig", probe: Probe | None = None
) -> dict[str, list[Row]]:
    """Rows of the tables "exit_regret" and "oracle_frontier" without their column `run`, by name.

    Every operating point of `exits`, and fixed loops at every count. A weighted mean is no state of a trajectory, so
    criteria that keep one are left out.

    Args:
        checkpoint: The model and the seed of its noise.
        text: Held-out sequences.
        exits: Criteria, most loop steps and readout. Every loop step has its own keys and values.
        oracle: Tolerance of converged losses and sequences at a time.
        probe: Fitted probe, for its criterion.
    """
    criteria = make_criteria(exits, probe) | {("fixed", k): Fixed(k) for k in range(1, exits.max_loops + 1)}
    criteria = {point: criterion for point, criterion in criteria.items() if criterion.keeps != "weighted"}
    labels = checkpoint.model.config.group_labels
    found: dict[str, list[Row]] = {"exit_regret": [], "oracle_frontier": []}
    with meter("regret", len(labels) * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(oracle.batch_size):
            tokens = batch.inputs.to(checkpoint.device)
            passing = Pass.of(checkpoint, tokens, batch.sequences, exits.max_loops)
            for frozen in frozen_groups(passing, tokens):
                losses, predictions = frozen.decode(batch.targets)
                group = {"group": labels[frozen.group]}
                converged = {
                    "loss": converged_within(losses, oracle.tolerance),
                    "prediction": converged_from(predictions),
                }
                rows = _regret_rows(frozen, criteria, losses, converged, batch, exits.readout)
                found["exit_regret"] += [group | row for row in rows]
                found["oracle_frontier"] += [group | row for row in _frontier_rows(losses, batch)]
                bar.update(batch.inputs.numel())
    return found


def _regret_rows(
    frozen: FrozenGroup,
    criteria: dict[OperatingPoint, ExitCriterion],
    losses: Tensor,
    converged: dict[str, Tensor],
    batch: HeldOut,
    readout: str,
) -> Iterator[Row]:
    """One row per operating point, oracle and sequence; losses (K + 1, B, T), first converged states (B, T)."""
    for (name, threshold), criterion in criteria.items():
        loop_steps, evaluations = frozen.exits(criterion, readout)
        ce = losses.gather(0, loop_steps[None])[0]
        for oracle, first in converged.items():
            point = {"criterion": name, "threshold": float(threshold), "oracle": oracle}
            compared = compare(loop_steps, evaluations, ce - losses[-1], first)
            means = _means({"evaluations": evaluations, "ce": ce} | compared)
            yield from (point | row for row in batch.rows(**means))


def compare(loop_steps: Tensor, evaluations: Tensor, lost: Tensor, first: Tensor) -> dict[str, Tensor]:
    """Columns of the table "exit_regret" per token, against an oracle that leaves at state `first`: (…) each.

    Args:
        loop_steps: Loop steps of the state with which the token leaves.
        evaluations: Their cost.
        lost: Nats above the loss at full depth.
        first: First converged state.
    """
    is_converged = loop_steps >= first
    return {
        "least": first.clamp(min=1),
        "converged": is_converged,
        "extra": torch.where(is_converged, evaluations - first.clamp(min=1), 0),
        "lost": torch.where(is_converged, 0, lost),
    }


def _frontier_rows(losses: Tensor, batch: HeldOut) -> Iterator[Row]:
    """One row per price and sequence, for losses (K + 1, B, T)."""
    costs = exit_costs(len(losses), losses.device)
    for price in PRICES:
        chosen = cheapest_exits(losses, price)
        means = _means({"evaluations": costs[chosen], "ce": losses.gather(0, chosen[None])[0]})
        yield from ({"price": price, **row} for row in batch.rows(**means))


def _means(columns: dict[str, Tensor]) -> dict[str, list[float]]:
    """Means over the tokens of each sequence: (B, T) -> B numbers."""
    return {name: values.double().mean(-1).tolist() for name, values in columns.items()}
