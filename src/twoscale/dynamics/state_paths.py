"""The states of one held-out sequence in their principal plane, for Fig. 1.

The states themselves (`twoscale.dynamics.states.save_states`) are as large as the model is wide;
the table has two coordinates of each.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from safetensors import SafetensorError, safe_open

from twoscale import tables
from twoscale.base import InputError
from twoscale.jobs.table_job import TableJob, job_files

if TYPE_CHECKING:
    from twoscale.model.checkpoints import CheckpointJob

METADATA_KEYS = ("sites", "tokens", "iteration", "sequence")
DESCRIPTION = ("stage", "layer", "group", "k")  # columns that describe a site, as in its metadata
COORDINATES = ("pc1", "pc2")


@dataclass(frozen=True)
class States:
    """All hidden states of one held-out sequence, from the embedding to the last layer.

    A site is {"stage": "embedding" | "layer" | "loop", "layer": int or None, "group": "5-6" or
    None, "k": int or None}; k = 0 is the initial state of a group. "follows": false marks a group
    that does not start from the site before.
    """

    values: np.ndarray  # (P, T, C), site by token by channel
    sites: list[dict]  # P, in the order of the model
    tokens: list[str]  # T
    iteration: int
    sequence: int


def read_states(path: str | Path) -> States:
    """Read the tensor "states" and the JSON of the metadata key "twoscale".

    Raises InputError if they do not match.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            values = file.get_tensor("states")
            described = json.loads((file.metadata() or {})["twoscale"])
        states = States(values, **{key: described[key] for key in METADATA_KEYS})
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        expected = "the safetensors tensor 'states', and metadata 'twoscale' with the keys"
        raise InputError(
            f"{path}: cannot be read as hidden states ({error!r}), expected {expected}"
            f" {', '.join(METADATA_KEYS)}."
        ) from error
    sites, tokens = len(states.sites), len(states.tokens)
    if values.ndim != 3 or values.shape[:2] != (sites, tokens):
        raise InputError(
            f"{path}: found states of shape {values.shape}, expected {sites} sites by {tokens}"
            " tokens by channels, as in the metadata."
        )
    return states


def state_paths(states: States, run: str) -> pd.DataFrame:
    """The table "state_paths": coordinates of every state in the principal plane of all of them."""
    plane, shares = project(states.values)  # (P, T, 2) and (2,)
    sites, tokens = plane.shape[:2]
    described = pd.DataFrame(states.sites, columns=[*DESCRIPTION, "follows"])
    described["follows"] = [site.get("follows", True) for site in states.sites]
    described = described.astype({"layer": "Int32", "k": "Int32"})
    site = np.repeat(np.arange(sites), tokens)  # of each row: one per site and token
    frame = described.loc[site].reset_index(drop=True)
    frame = frame.assign(
        run=run,
        iteration=states.iteration,
        sequence=states.sequence,
        site=site,
        position=np.tile(np.arange(tokens), sites),
        token=np.tile(np.array(states.tokens, dtype=object), sites),
    )
    for axis, name in enumerate(COORDINATES):
        frame[name] = plane[..., axis].ravel()
        # the same in every row, for the label of the axis
        frame[f"{name}_share"] = shares[axis]
    return frame[list(tables.columns("state_paths"))]


@job_files(reads="tokenizer", writes="states")
def extract_states(job: "CheckpointJob") -> None:
    """Every hidden state of one of the sequences that `extract_trajectories` measures."""
    # here, because projecting needs no torch
    from twoscale.data.tokenizer import load_tokenizer
    from twoscale.dynamics.states import save_states

    config = job.config
    place = config.trajectories.states_sequence
    sequence = job.held_out(config.trajectory_sequences)[place : place + 1]
    tokenizer = load_tokenizer(config.tokenizer, job.optional("tokenizer"))
    words = [tokenizer.decode([token]) for token in sequence.inputs[0].tolist()]
    checkpoint = job.checkpoint(config.trajectories.dtype)
    save_states(checkpoint, sequence, words, config.trajectories.loops, job.file("states"))


@job_files(reads="states", writes="state_paths")
def project_states(job: TableJob) -> None:
    """Their coordinates in their principal plane."""
    job.write("state_paths", state_paths(read_states(job.file("states")), job.config.run))


def project(values: np.ndarray, components: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of states (P, T, C) in their n principal directions, and their shares.

    Returns (P, T, n), and the shares of the variance (n,).

    The directions are fitted to the union of all tokens, depths and loop steps (section 3 of the
    paper); the largest loading of each is positive, which fixes the signs. There are at most C
    directions.
    """
    sites, tokens, channels = values.shape
    union = values.reshape(-1, channels).astype(np.float64)  # (P T, C)
    union -= union.mean(axis=0)
    # right singular vectors of the data, from its C x C scatter: P T is up to a hundred times C
    _, scatter, directions = np.linalg.svd(union.T @ union, hermitian=True)
    main = directions[:components]  # (n, C)
    largest = np.abs(main).argmax(axis=1, keepdims=True)
    signs = np.sign(np.take_along_axis(main, largest, axis=1))
    main = main * signs
    coordinates = union @ main.T  # (P T, n)
    directions_kept = len(main)  # at most C
    shares = scatter[:directions_kept] / scatter.sum()
    return coordinates.reshape(sites, tokens, directions_kept), shares
