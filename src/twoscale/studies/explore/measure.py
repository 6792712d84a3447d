"""What the page results/explore.html shows of one held-out sequence: states, predictions and exits of each token.

Every group runs `exits.max_loops` loop steps. The prediction from a state x^k is the model's if all tokens leave the
group with their x^k and all later groups run in full. Exits are those of the whole model under a criterion, as in the
table "exit_quality", so after an earlier exit states differ from the full loops.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from twoscale.base import meter
from twoscale.config import ExitsConfig, PathTypesConfig
from twoscale.data.batches import HeldOut
from twoscale.data.tokenizer import Tokenizer, load_tokenizer
from twoscale.dynamics.state_paths import COORDINATES, project
from twoscale.dynamics.states import describe, exact, flat, is_group
from twoscale.dynamics.trajectories import measure_group
from twoscale.exits.evaluation import TextEvaluator, make_criteria
from twoscale.exits.probe import Probe, open_probe
from twoscale.exits.references import LOGITS_AT_A_TIME, Pass, Row
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import StageTrace

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob

MEASURES = ("step_norm", "cosine")


def run(job: "CheckpointJob") -> None:
    config, site = job.config, job.config.explore.sequence
    whole, tokens = job.held_out(config.sequences)[site : site + 1], config.explore.tokens
    sequence = replace(whole, inputs=whole.inputs[:, :tokens], targets=whole.targets[:, :tokens])
    tokenizer = load_tokenizer(config.tokenizer, job.optional("tokenizer"))
    # one model at a time: the geometry in the dtype of trajectories, the exits in that of the exit tables
    states = trace_states(job.checkpoint(config.trajectories.dtype), sequence, config.exits.max_loops, tokenizer)
    job.write("explore_states", states, "states")
    checkpoint = job.checkpoint(config.exits.dtype)
    probe = open_probe(job.optional("probe"), checkpoint)
    job.write("explore_exits", exit_rows(checkpoint, sequence, config.exits, probe), "exits")


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """The text of one id, with replacement characters where it is part of a character; "#7" for an id without text."""
    return tokenizer.bytes_of(token).decode("utf-8", errors="replace") or f"#{token}"


@torch.no_grad()
def trace_states(checkpoint: LoadedCheckpoint, sequence: HeldOut, loops: int, tokenizer: Tokenizer) -> pd.DataFrame:
    """The table "explore_states" of one sequence, without its column `run`."""
    model, noise = checkpoint.model, checkpoint.noise(sequence.sequences)
    tokens = sequence.inputs.to(checkpoint.device)
    states, frames = [], []
    with meter("explore", 1 + len(model.stages), "stages") as bar:
        for stage in model.trace(tokens, [loops] * len(model.config.groups), noise):
            states += [exact(state[0]).cpu() for state in stage.states]
            frames.append(_stage_frame(checkpoint, sequence, stage, tokenizer))
            bar.update(1)
    frame = pd.concat(frames, ignore_index=True)
    coordinates, shares = project(torch.stack(states).numpy())  # (P, T, 2)
    for axis, name in enumerate(COORDINATES):
        frame[name], frame[f"{name}_share"] = coordinates[..., axis].ravel(), shares[axis]
    frame["site"] = np.repeat(np.arange(len(states), dtype=np.int32), tokens.shape[1])
    frame["position"] = np.tile(np.arange(tokens.shape[1], dtype=np.int32), len(states))
    for name, ids in {"token": sequence.inputs, "next_token": sequence.targets}.items():
        frame[name] = [text_of(tokenizer, token) for token in ids[0].tolist()] * len(states)
    return frame.assign(iteration=checkpoint.iteration, sequence=sequence.sequences[0])


def _stage_frame(
    checkpoint: LoadedCheckpoint, sequence: HeldOut, stage: StageTrace, tokenizer: Tokenizer
) -> pd.DataFrame:
    """The columns of "explore_states" of one stage, state by state."""
    length, sites = sequence.inputs.shape[1], describe(stage, checkpoint.model.config.group_labels)
    columns: dict[str, Any] = {name: np.repeat([site[name] for site in sites], length) for name in sites[0]}
    columns |= dict.fromkeys(("prediction", *MEASURES, "probability"))
    if is_group(stage):
        rows, _ = measure_group(stage.states, PathTypesConfig())  # the path, and so this config, is not used
        ids, probability = predictions(checkpoint, sequence, stage)
        measured = {name: rows[name] for name in MEASURES} | {"probability": probability}
        columns |= {name: flat(values) for name, values in measured.items()}
        columns["prediction"] = [text_of(tokenizer, token) for token in ids.flatten().tolist()]
    return pd.DataFrame(columns, index=range(len(sites) * length))


def predictions(checkpoint: LoadedCheckpoint, sequence: HeldOut, stage: StageTrace) -> tuple[Tensor, Tensor]:
    """The most likely next token after each state of a group, and its probability, (K + 1, T) each.

    All tokens of one row leave the group with the state of the same loop step; later groups run K loop steps.
    """
    assert stage.stage is not None
    model, states, decoded = checkpoint.model, torch.cat(stage.states), []  # (K + 1, T, C)
    for part in states.split(max(1, LOGITS_AT_A_TIME // (states.shape[1] * model.config.vocab_size))):
        passing = Pass.of(
            checkpoint, sequence.inputs.to(states.device), sequence.sequences * len(part), len(states) - 1
        )
        decoded.append(model.readout(passing.behind(stage.stage.index, part)).softmax(-1).max(-1))
    return torch.cat([most.indices for most in decoded]), torch.cat([most.values for most in decoded])


def exit_rows(
    checkpoint: LoadedCheckpoint, sequence: HeldOut, exits: ExitsConfig, probe: Probe | None = None
) -> Iterator[Row]:
    """Rows of the table "explore_exits": where each token of one sequence leaves each group, under each criterion."""
    evaluator, criteria = TextEvaluator(checkpoint, exits), make_criteria(exits, probe)
    with meter("exits", len(criteria), "points") as bar:
        for (name, threshold), criterion in criteria.items():
            _, counts = evaluator.evaluate(criterion, sequence)
            point = {"iteration": checkpoint.iteration, "criterion": name, "threshold": float(threshold)}
            for group, label in enumerate(checkpoint.model.config.group_labels):
                for position in range(sequence.inputs.shape[1]):
                    spent = {key: values[group, 0, position].item() for key, values in vars(counts).items()}
                    yield point | {"group": label, "position": position} | spent
            bar.update(1)
