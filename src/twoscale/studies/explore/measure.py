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
from twoscale.dynamics.state_paths import project
from twoscale.dynamics.states import describe, exact, is_group
from twoscale.dynamics.trajectories import measure_group
from twoscale.exits.evaluation import TextEvaluator, make_criteria
from twoscale.exits.probe import Probe, open_probe
from twoscale.exits.references import LOGITS_AT_A_TIME, Pass, Row
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import CausalAttention, StageTrace

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob

COMPONENTS = ("pc1", "pc2")
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
    words = {
        name: [text_of(tokenizer, token) for token in ids[0].tolist()]
        for name, ids in (("token", sequence.inputs), ("next_token", sequence.targets))
    }
    tokens = sequence.inputs.to(checkpoint.device)
    states, frames = [], []
    with meter("explore", 1 + len(model.stages), "stages") as bar:
        for stage in model.trace(tokens, [loops] * len(model.config.groups), noise):
            states += [exact(state[0]).cpu() for state in stage.states]
            frames.append(_stage_frame(checkpoint, sequence, stage, tokenizer))
            bar.update(1)
    frame = pd.concat(frames, ignore_index=True)
    coordinates, shares = project(torch.stack(states).numpy(), len(COMPONENTS))  # (P, T, 2)
    for axis, name in enumerate(COMPONENTS):
        frame[name], frame[f"{name}_share"] = coordinates[..., axis].ravel(), shares[axis]
    frame["site"] = np.repeat(np.arange(len(states), dtype=np.int32), tokens.shape[1])
    frame["position"] = np.tile(np.arange(tokens.shape[1], dtype=np.int32), len(states))
    frame = frame.assign(**{name: texts * len(states) for name, texts in words.items()})
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
        columns |= {name: values.flatten().float().cpu().numpy() for name, values in measured.items()}
        columns["prediction"] = [text_of(tokenizer, token) for token in ids.flatten().tolist()]
    return pd.DataFrame(columns, index=range(len(sites) * length))


def predictions(checkpoint: LoadedCheckpoint, sequence: HeldOut, stage: StageTrace) -> tuple[Tensor, Tensor]:
    """The most likely next token after each state of a group, and its probability, (K + 1, T) each.

    All tokens of one row leave the group with the state of the same loop step; later groups run K loop steps.
    """
    assert stage.stage is not None
    model, states = checkpoint.model, torch.cat(stage.states)  # (K + 1, T, C)
    attend = CausalAttention.of(sequence.inputs.to(states.device))
    decoded = []
    for part in states.split(max(1, LOGITS_AT_A_TIME // (states.shape[1] * model.config.vocab_size))):
        noise = checkpoint.noise([sequence.sequences[0]] * len(part))
        hidden = Pass(model, len(states) - 1, noise, attend).behind(stage.stage.index, part)
        decoded.append(model.readout(hidden).softmax(-1).max(-1))
    return torch.cat([ids for _, ids in decoded]), torch.cat([probabilities for probabilities, _ in decoded])


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
                pairs = zip(counts.loop_steps[group, 0].tolist(), counts.evaluations[group, 0].tolist(), strict=True)
                for position, (steps, evaluations) in enumerate(pairs):
                    row = {"group": label, "position": position, "loop_steps": steps, "evaluations": evaluations}
                    yield point | row
            bar.update(1)
