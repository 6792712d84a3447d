"""Held-out text in batches, the states of its tokens, and their keys in tables.

All extractions share them, and the recorder of other models.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twoscale.base import InputError, meter, replacing
from twoscale.data.batches import HeldOut
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import StageTrace

Columns = dict[str, np.ndarray]
Row = dict[str, object]


def batches(
    checkpoint: LoadedCheckpoint, held_out: HeldOut, size: int, label: str
) -> Iterator[HeldOut]:
    """`held_out` in batches of `size` sequences, with a progress bar."""
    label = f"{label} of iteration {checkpoint.iteration}"
    with meter(label, held_out.inputs.numel(), "tokens") as bar:
        for batch in held_out.batches(size):
            yield batch
            bar.update(batch.inputs.numel())


def is_group(stage: StageTrace) -> bool:
    return stage.stage is not None and stage.stage.is_group


def exact(state: Tensor) -> Tensor:
    """The state in the dtype in which it is measured: its own, but at least float32."""
    return state.to(torch.promote_types(state.dtype, torch.float32))


def token_keys(iteration: int, batch: HeldOut) -> Columns:
    """The key columns of B * T tokens, sequence by sequence."""
    sequences, length = batch.inputs.shape
    return {
        "iteration": np.full(sequences * length, iteration),
        "sequence": np.repeat(np.asarray(batch.sequences, dtype=np.int32), length),
        "document": np.repeat(np.asarray(batch.documents, dtype=np.int32), length),
        "position": np.tile(np.arange(length, dtype=np.int32), sequences),
    }


def check_finite(values: Tensor, keys: Columns, places: Sequence[str], what: str) -> None:
    """Refuse values that are not finite in float32, the type of the tables.

    Args:
        values: Of tokens at P places, (P, ...).
        keys: Key columns of the tokens, as `token_keys` returns them.
        places: Names of the P places, such as "group 4, loop step 0".
        what: Name of a value, such as "a state of norm".

    Raises:
        InputError: with the first place, sequence and position of such a value.
    """
    stored = values.detach().flatten(1).float().cpu().numpy()  # (P, tokens), as in the tables
    wrong = np.argwhere(~np.isfinite(stored))
    if not len(wrong):
        return
    place, token = wrong[0].tolist()
    sequence, position = keys["sequence"][token], keys["position"][token]
    raise InputError(
        f"{places[place]}, sequence {sequence}, position {position}: found {what}"
        f" {stored[place, token]:g}, expected finite numbers."
    )


def loop_places(label: str, states: int) -> list[str]:
    """Names of the states x^0, x^1, … of a group, for `check_finite`."""
    return [_place(site) for site in describe_loop(label, states)]


def flat(values: Tensor) -> np.ndarray:
    """Values of any shape as a float32 array (n,) on the host."""
    return values.flatten().float().cpu().numpy()


def sequence_means(
    point: Mapping[str, object], batch: HeldOut, columns: Mapping[str, Tensor]
) -> Iterator[Row]:
    """Rows with the key `point`: means of columns (B, T) over the tokens of each sequence."""
    # sums of float32 would lose digits
    means = {name: values.double().mean(-1).tolist() for name, values in columns.items()}
    return ({**point, **row} for row in batch.rows(**means))


def compare_predictions(
    decoded: Sequence[Mapping[str, Tensor]], trained: Mapping[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Columns of the table "depth_quality" per token, (B, T) each, for each loop count.

    `decoded` has "ce", "entropy" and "predicted" (B, T) of each loop count, ascending, `trained`
    those of the trained loop count.
    """
    flips = torch.full_like(decoded[0]["ce"], torch.nan)  # no smaller loop count comes before
    for place, found in enumerate(decoded):
        if place:
            flips = found["predicted"] != decoded[place - 1]["predicted"]
        agreement = found["predicted"] == trained["predicted"]
        quality = {name: found[name] for name in ("ce", "entropy")}
        yield quality | {"flips": flips, "agreement": agreement}


# --- states of Fig. 1 -----------------------------------------------------------------------------


@torch.no_grad()
def save_states(
    checkpoint: LoadedCheckpoint, sequence: HeldOut, words: Sequence[str], loops: int, path: Path
) -> None:
    """Write every hidden state of one held-out sequence as float32 (P, T, C), with metadata.

    P counts the embedding, each unlooped layer, and x^0 … x^K of each group. `words` are the texts
    of the T tokens.
    """
    model = checkpoint.model
    tokens = sequence.inputs.to(checkpoint.device)
    noise = checkpoint.noise(sequence.sequences)
    sites, states = [], []
    for stage in model.trace(tokens, [loops] * len(model.config.groups), noise):
        sites += _describe(stage, model.config.group_labels)
        # the only sequence of the batch: (T, C)
        states += [state[0].float().cpu() for state in stage.states]
    header = {
        "iteration": checkpoint.iteration,
        "sequence": sequence.sequences[0],
        "tokens": list(words),
        "sites": sites,
    }
    write_states(path, torch.stack(states), header)


def write_states(path: Path, states: Tensor, header: Mapping[str, Any]) -> None:
    """Write states (P, T, C), with the metadata of `twoscale.dynamics.state_paths.States`.

    Raises InputError for states that are not finite.
    """
    from safetensors.torch import save_file

    tokens = states.shape[1]
    keys = {"sequence": np.full(tokens, header["sequence"]), "position": np.arange(tokens)}
    places = [_place(site) for site in header["sites"]]
    check_finite(torch.linalg.vector_norm(states, dim=-1), keys, places, "a state of norm")
    metadata = {"twoscale": json.dumps(header, sort_keys=True)}
    with replacing(path) as temporary:
        save_file({"states": states}, temporary, metadata=metadata)


def _describe(stage: StageTrace, labels: Sequence[str]) -> list[dict]:
    """Metadata of the states of one stage, one entry per state."""
    if stage.stage is not None and stage.stage.group is not None:
        return describe_loop(labels[stage.stage.group], len(stage.states))
    name, layer = ("embedding", None) if stage.stage is None else ("layer", stage.stage.layer)
    return [{"stage": name, "layer": layer, "group": None, "k": None}]


def describe_loop(label: str, states: int) -> list[dict]:
    """Metadata of the states x^0, x^1, … of a group."""
    return [{"stage": "loop", "layer": None, "group": label, "k": k} for k in range(states)]


def _place(site: Mapping[str, Any]) -> str:
    if site["stage"] == "loop":
        return f"group {site['group']}, loop step {site['k']}"
    return "embedding" if site["layer"] is None else f"layer {site['layer']}"
