"""What the page results/explore.html shows of one held-out sequence: states, predictions and exits of each token.

Every group runs `exits.max_loops` loop steps. The prediction from a state x^k is that of the model if all tokens left
the group with their x^k and all groups behind it ran in full. Exits are those of the whole model under a criterion,
as in the table "exit_quality": behind a group, and behind earlier tokens, that stopped sooner, states differ from the
full loops.
"""

from collections.abc import Iterator
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
from twoscale.exits.benchmark import Row, TextEvaluator, make_criteria
from twoscale.exits.probe import Probe, open_probe
from twoscale.exits.sequence_pass import LOGITS_AT_A_TIME, Pass
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import CausalAttention, StageTrace

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob

COMPONENTS = 3
MEASURES = ("state_norm", "step_norm", "cosine")


def run(job: "CheckpointJob") -> None:
    """Write the tables of the page."""
    config = job.config
    site = config.explore.sequence
    sequence = beginning(job.held_out(config.sequences)[site : site + 1], config.explore.tokens)
    tokenizer = load_tokenizer(config.tokenizer, job.file("tokenizer") if job.files.get("tokenizer") else None)
    # one model at a time: the geometry in the dtype of trajectories, the exits in that of the exit tables
    states, components = trace_states(
        job.checkpoint(config.trajectories.dtype), sequence, config.exits.max_loops, tokenizer
    )
    checkpoint = job.checkpoint(config.exits.dtype)
    exits = exit_rows(checkpoint, sequence, config.exits, open_probe(job.optional("probe"), checkpoint))
    measured = {"tokens": token_rows(sequence, tokenizer), "states": states, "components": components, "exits": exits}
    for name, rows in measured.items():
        job.write(f"explore_{name}", rows, name)


def beginning(sequence: HeldOut, tokens: int) -> HeldOut:
    """The first tokens of each sequence, which depend on no later ones."""
    return HeldOut(sequence.inputs[:, :tokens], sequence.targets[:, :tokens], sequence.sequences, sequence.documents)


def text_of(tokenizer: Tokenizer, token: int) -> str:
    """The text of one id, with replacement characters where it is part of a character; "#7" for an id without text."""
    return tokenizer.bytes_of(token).decode("utf-8", errors="replace") or f"#{token}"


def token_rows(sequence: HeldOut, tokenizer: Tokenizer) -> Iterator[Row]:
    """Rows of the table "explore_tokens": the tokens of one sequence and those that follow them."""
    pairs = zip(sequence.inputs[0].tolist(), sequence.targets[0].tolist(), strict=True)
    for position, ids in enumerate(pairs):
        token, following = (text_of(tokenizer, i) for i in ids)
        yield sequence.keys[0] | {"position": position, "token": token, "next_token": following}


@torch.no_grad()
def trace_states(
    checkpoint: LoadedCheckpoint, sequence: HeldOut, loops: int, tokenizer: Tokenizer
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables "explore_states" and "explore_components", without their column `run`.

    Args:
        checkpoint: The model, its iteration and the seed of its noise.
        sequence: One sequence of T tokens.
        loops: Loop steps of every group.
        tokenizer: Gives the text of the predictions.
    """
    model = checkpoint.model
    tokens, noise = sequence.inputs.to(checkpoint.device), checkpoint.noise(sequence.sequences)
    states, frames = [], []
    with meter("explore", 1 + len(model.stages), "stages") as bar:
        for stage in model.trace(tokens, [loops] * len(model.config.groups), noise):
            states += [exact(state[0]).cpu() for state in stage.states]
            frames.append(_stage_frame(checkpoint, sequence, stage, tokenizer))
            bar.update(1)
    coordinates, shares = project(torch.stack(states).numpy(), COMPONENTS)  # (P, T, n)
    frame = pd.concat(frames, ignore_index=True)
    frame["iteration"] = checkpoint.iteration
    frame["site"] = np.repeat(np.arange(len(states), dtype=np.int32), tokens.shape[1])
    for axis in range(COMPONENTS):  # a model with fewer channels has fewer components
        frame[f"pc{axis + 1}"] = coordinates[..., axis].ravel() if axis < len(shares) else 0.0
    components = pd.DataFrame({"component": np.arange(len(shares)) + 1, "share": shares})
    return frame, components.assign(iteration=checkpoint.iteration)


def _stage_frame(
    checkpoint: LoadedCheckpoint, sequence: HeldOut, stage: StageTrace, tokenizer: Tokenizer
) -> pd.DataFrame:
    """Rows of "explore_states" of one stage, state by state, without site and coordinates."""
    length = sequence.inputs.shape[1]
    sites = describe(stage, checkpoint.model.config.group_labels)
    columns: dict[str, Any] = {name: np.repeat([site[name] for site in sites], length) for name in sites[0]}
    count = len(sites) * length
    columns |= {"position": np.tile(np.arange(length, dtype=np.int32), len(sites))}
    measured = dict.fromkeys(("prediction", *MEASURES, "probability"))
    if is_group(stage):
        rows, _ = measure_group(stage.states, PathTypesConfig())  # the path, and so this config, is not used
        measured = {name: rows[name].flatten().float().cpu().numpy() for name in MEASURES}
        ids, probability = predictions(checkpoint, sequence, stage)
        known = {token: text_of(tokenizer, token) for token in ids.unique().tolist()}
        measured["prediction"] = [known[token] for token in ids.flatten().tolist()]
        measured["probability"] = probability.flatten().float().cpu().numpy()
    return pd.DataFrame(columns | measured, index=range(count))


def predictions(checkpoint: LoadedCheckpoint, sequence: HeldOut, stage: StageTrace) -> tuple[Tensor, Tensor]:
    """The most likely next token after each state of a group, and its probability, (K + 1, T) each.

    All tokens of one row leave the group with the state of the same loop step; the groups behind it then run K loop
    steps.
    """
    states = torch.cat(stage.states)  # (K + 1, T, C)
    per_state = states.shape[1] * checkpoint.model.config.vocab_size
    parts = states.split(max(1, LOGITS_AT_A_TIME // per_state))
    decoded = [_decode(checkpoint, sequence.sequences[0], stage, part, len(states) - 1) for part in parts]
    ids, probabilities = zip(*decoded, strict=True)
    return torch.cat(ids), torch.cat(probabilities)


def _decode(
    checkpoint: LoadedCheckpoint, sequence: int, stage: StageTrace, states: Tensor, loops: int
) -> tuple[Tensor, Tensor]:
    """`predictions` of a few states (N, T, C) with which one sequence may leave a group."""
    assert stage.stage is not None
    model, group = checkpoint.model, stage.stage.index
    attend = CausalAttention(torch.arange(states.shape[1], device=states.device))
    noise = checkpoint.noise([sequence] * len(states))
    hidden = Pass(model, loops, noise, attend).behind(group, states)
    probabilities, ids = model.readout(hidden).softmax(-1).max(-1)
    return ids, probabilities


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
                columns = (values[group, 0].tolist() for values in (counts.loop_steps, counts.evaluations))
                for position, (loop_steps, evaluations) in enumerate(zip(*columns, strict=True)):
                    row = point | {"group": label, "position": position, "loop_steps": loop_steps}
                    yield row | {"evaluations": evaluations}
            bar.update(1)
