"""Predictions and exits of single tokens at every loop step, for the page results/loops.html.

A state x^k of a group is decoded as in the lens: all tokens leave the group with their x^k and pass
the stages after it, whose loop steps do not depend on k. Exits are decided on the same states. A
criterion gets the readout of the config; if that is `remaining_layers`, the prediction of the page.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from twoscale.config import CriterionConfig
from twoscale.data.batches import HeldOut
from twoscale.data.tokenizer import load_tokenizer
from twoscale.dynamics.states import Row, check_finite, loop_places, token_keys
from twoscale.exits.contract import configured_criteria
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.passes import Pass, measure_tokens
from twoscale.jobs.table_job import job_files
from twoscale.model.checkpoints import CheckpointJob, LoadedCheckpoint

Criteria = Mapping[tuple[str, float], ExitCriterion]  # (name, threshold) -> criterion
TABLES = ("loop_tokens", "loop_exits")


@job_files(reads="tokenizer", writes="loop_tokens loop_exits")
def run(job: CheckpointJob) -> None:
    """Write the tables "loop_tokens" and "loop_exits" of the sequence of Fig. 1."""
    config = job.config
    place = config.trajectories.states_sequence
    whole = job.held_out(config.trajectory_sequences)[place : place + 1]
    # earlier tokens do not depend on later ones
    inputs, targets = (ids[:, : config.tokens] for ids in (whole.inputs, whole.targets))
    sequence = HeldOut(inputs, targets, whole.sequences, whole.documents)
    tokenizer = load_tokenizer(config.tokenizer, job.optional("tokenizer"))
    found = measure_sequence(
        job.checkpoint(config.trajectories.dtype),
        sequence,
        config.trajectories.loops,
        make_criteria(config.criteria),
        (config.readout, config.max_loops),
        lambda token: tokenizer.decode([token]),
    )
    for table, rows in found.items():
        job.write(table, rows)


def make_criteria(entries: Mapping[str, Mapping]) -> dict[tuple[str, float], ExitCriterion]:
    """The criteria of the key `exits.criteria`, without fixed loop counts."""
    configs = {name: CriterionConfig.model_validate(entry) for name, entry in entries.items()}
    classes = configured_criteria(configs)
    points = ((name, tau) for name, entry in configs.items() for tau in entry.thresholds)
    return {
        (name, tau): make_criterion(name, tau, classes) for name, tau in points if name != "fixed"
    }


@torch.no_grad()
def measure_sequence(
    checkpoint: LoadedCheckpoint,
    sequence: HeldOut,
    loops: int,
    criteria: Criteria,
    exits: tuple[str, int],
    word: Callable[[int], str],
) -> dict[str, list[Row]]:
    """Rows of `TABLES` by name, without `run`, of one sequence of T tokens.

    Args:
        checkpoint: The model.
        sequence: One held-out sequence.
        loops: Loop steps K of every group.
        criteria: Exit criteria.
        exits: The readout of the criteria, and the most loop steps of a token.
        word: Token id -> text.

    Raises:
        InputError: for a loss that is not finite, or a criterion that breaks its contract.
    """
    model, labels = checkpoint.model, checkpoint.model.config.group_labels
    tokens, targets = (
        ids.to(checkpoint.device) for ids in (sequence.inputs, sequence.targets)
    )  # (1, T)
    passing = Pass.of(checkpoint, tokens, sequence.sequences, loops)
    key = {"iteration": checkpoint.iteration, "sequence": sequence.sequences[0]}
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    for group, states in passing.groups(tokens):  # x^0 … x^K (1, T, C)
        # one decoding for each k, as if all tokens left with their x^k
        of_steps = [measure_tokens(model, passing.after(group, each), targets) for each in states]
        losses = torch.stack([columns["ce"] for columns in of_steps])  # (K + 1, 1, T)
        places = loop_places(labels[group], len(states))
        check_finite(losses, token_keys(checkpoint.iteration, sequence), places, "a loss of")
        of_group = key | {"group": labels[group]}
        for k, columns in enumerate(of_steps):
            of_tokens = {name: values[0] for name, values in columns.items()}
            rows = token_rows(range(len(targets[0])), of_tokens, targets[0], word)
            found["loop_tokens"] += [of_group | {"k": k} | row for row in rows]
        exited = _exits(passing, group, states, criteria, exits)
        found["loop_exits"] += [of_group | row for row in exited]
    return found


def token_rows(
    positions: Sequence[int],
    columns: Mapping[str, Tensor],
    targets: Tensor,
    word: Callable[[int], str],
) -> Iterator[Row]:
    """Columns of the table "loop_tokens" for the N tokens at these positions.

    `columns` has "ce", "entropy" and "predicted", and `targets` the ids to predict, (N,) each.
    """
    values = (columns[name].tolist() for name in ("predicted", "ce", "entropy"))
    for position, target, predicted, ce, entropy in zip(
        positions, targets.tolist(), *values, strict=True
    ):
        yield {
            "position": position,
            "predicted": word(predicted),
            "target": word(target),
            "is_right": predicted == target,
            "ce": ce,
            "entropy": entropy,
        }


def _exits(
    passing: Pass,
    group: int,
    states: Sequence[Tensor],
    criteria: Criteria,
    exits: tuple[str, int],
) -> Iterator[Row]:
    """Columns of the table "loop_exits" for the states x^0 … x^K (1, T, C) of a group."""
    readout, max_loops = exits
    known = states[: max_loops + 1]
    for (name, threshold), criterion in criteria.items():
        found = passing.exits(group, known, criterion, readout, partial(passing.after, group))
        point = {"criterion": name, "threshold": float(threshold)}
        columns = zip(found.evaluations[0].tolist(), found.left[0].tolist(), strict=True)
        for position, (loops, has_left) in enumerate(columns):
            yield point | {"position": position, "loops": loops, "left": has_left}
