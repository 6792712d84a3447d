"""The arena for exits that another program chose, without a model.

    python -m twoscale.studies.arena losses.parquet exits.parquet results/mine

losses.parquet has the loss of every token at every depth, exits.parquet the depths at which one or
more gates let the tokens leave (tables "depth_losses" and "gate_exits"; docs/arena.md, "Exits of
other programs"). Losses may also come as an array of sequences, positions and depths in losses.npz.
Written are arena.md, arena.pdf and arena.parquet.

A depth is the number of evaluations of the loop after which a token's loss was measured. It is
taken not to depend on the depths at which other tokens leave, as where all tokens run every depth
and the exits only choose what is read out. Random exits and fixed loops are then exact: the mean
over all draws is computed.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.exits.references import (
    FIXED,
    RANDOM,
    cheapest_exits,
    exit_costs,
    fixed_evaluations,
    split_half,
)
from twoscale.figures import style
from twoscale.jobs import command
from twoscale.studies.arena.draw import draw_arena, page, reliability, summarise, summary
from twoscale.studies.arena.measure import PRICES

GROUP = "loop"  # the one looped group of these tables
TOKEN, POINT = ["sequence", "position"], ["criterion", "threshold"]
# dtype of a declared column -> what it holds, and kinds of NumPy; whole numbers may be stored as
# floats
KINDS = {
    "string": ("text", "OU"),
    "float64": ("a finite number", "iuf"),
    "int32": ("a whole number", "iuf"),
}
# (criterion, threshold) -> the depth int64 (M,) at which each token leaves
Exits = dict[tuple[str, float], Tensor]


@dataclass(frozen=True)
class Losses:
    """Losses of M tokens at the depths 1 … K."""

    path: Path
    tokens: pd.DataFrame  # document, sequence and position of each, ordered by the last two
    # (K + 1, M), float64 or as in the file; infinite at depth 0, where no token can leave
    nats: Tensor

    @property
    def depths(self) -> int:
        return len(self.nats) - 1

    def rows(self, nats: Tensor, depths: Tensor, **keys: Any) -> pd.DataFrame:
        """`means` of `ce` and `evaluations` (M,), with further keys."""
        return self.means(ce=nats, evaluations=depths).assign(**keys)

    def means(self, **values: Tensor) -> pd.DataFrame:
        """Means of values (M,) over the tokens of each sequence, with its keys."""
        columns = {name: of_tokens.double().numpy() for name, of_tokens in values.items()}
        keys = ["sequence", "document"]
        by_sequence = self.tokens[keys].assign(**columns).groupby(keys)
        return by_sequence.mean().assign(tokens=by_sequence.size()).reset_index()

    def at(self, depths: Tensor, **keys: Any) -> pd.DataFrame:
        """`rows` of tokens that leave at the depths (M,)."""
        return self.rows(self.nats.gather(0, depths[None])[0], depths, **keys)


def read_losses(path: Path) -> Losses:
    """Read the table "depth_losses" or, from .npz, the array `losses` of `read_wide`.

    Raises InputError unless every token has one finite loss at each depth 1 … K, and K is at least
    2.
    """
    if path.suffix == ".npz":
        return read_wide(path)
    frame = _read("depth_losses", path).sort_values([*TOKEN, "depth"])
    depths = int(frame["depth"].max())
    _check_depths(path, depths)
    counts = frame.groupby(TOKEN)["depth"].agg(["min", "size", "nunique"])
    is_whole = (counts == [1, depths, depths]).all(axis="columns")
    partial = counts[~is_whole].reset_index()
    _refuse(path, partial, f"expected one loss at each depth 1 … {depths}")
    documents = frame.groupby("sequence")["document"].agg(["min", "max"])
    is_split = documents["min"] < documents["max"]
    several = documents[is_split].reset_index()
    _refuse(path, several, "expected one document per sequence")
    of_tokens = frame["loss"].to_numpy(np.float64).reshape(-1, depths)  # (M, K)
    tokens = frame.loc[frame["depth"] == 1, ["document", *TOKEN]].reset_index(drop=True)
    return _losses(path, tokens, of_tokens)


def _losses(path: Path, tokens: pd.DataFrame, of_tokens: np.ndarray) -> Losses:
    """The losses (M, K) of these tokens."""
    nats = np.empty((of_tokens.shape[1] + 1, len(of_tokens)), of_tokens.dtype)
    nats[0] = np.inf  # at depth 0
    nats[1:] = of_tokens.T
    return Losses(path, tokens, torch.from_numpy(nats))


def read_wide(path: Path) -> Losses:
    """Read an .npz with `losses` (sequences, positions, K) and `documents`.

    Losses are NaN beyond the end of a sequence. `documents` are integers (sequences,); without
    them, each sequence is a document. The arrays keep their precision.
    """
    with np.load(path) as arrays:
        shape = arrays["losses"].shape if "losses" in arrays else None
        if shape is None or len(shape) != 3 or 0 in shape:
            found = "no array losses" if shape is None else f"losses with shape {shape}"
            raise InputError(
                f"{path}: found {found}, expected an array losses of sequences, positions and"
                " depths."
            )
        losses = _floats(path, "losses", arrays["losses"])
        documents = arrays["documents"] if "documents" in arrays else np.arange(len(losses))
    depths = shape[-1]
    _check_depths(path, depths)
    if documents.shape != shape[:1]:
        raise InputError(
            f"{path}: found documents with shape {documents.shape}, expected {shape[:1]} as in"
            " losses."
        )
    documents = _floats(path, "documents", documents)
    if not (np.isfinite(documents) & (documents % 1 == 0)).all():
        raise InputError(
            f"{path}: found documents that are not whole numbers, expected one whole number per"
            " sequence."
        )
    missing = np.isnan(losses).sum(-1)  # (sequences, positions)
    is_partial = (missing > 0) & (missing < depths)
    wrong = np.argwhere(is_partial | np.isinf(losses).any(-1))
    if len(wrong):
        sequence, position = wrong[0]
        raise InputError(
            f"{path}: found sequence {sequence}, position {position}, expected one finite loss at"
            " each depth, or NaN at all of them."
        )
    sequence, position = np.nonzero(missing == 0)
    if not len(sequence):
        raise InputError(
            f"{path}: found no losses besides NaN, expected those of at least one token."
        )
    tokens = pd.DataFrame({"document": documents[sequence].astype(np.int64)})
    tokens = tokens.assign(sequence=sequence, position=position)
    return _losses(path, tokens, losses[sequence, position])


def read_exits(path: Path, losses: Losses) -> Exits:
    """Read the table "gate_exits".

    Raises InputError unless each criterion and threshold has one exit of each token.
    """
    frame = _read("gate_exits", path)
    beyond = frame[~frame["depth"].between(1, losses.depths)]
    _refuse(path, beyond, f"expected a depth of 1 … {losses.depths}")
    _refuse(path, frame[frame["criterion"] == FIXED], "expected another criterion than fixed loops")
    known = pd.MultiIndex.from_frame(losses.tokens[TOKEN])
    exits = {}
    for (criterion, threshold), rows in frame.groupby(POINT, sort=False):
        chosen = rows.set_index(TOKEN)["depth"].sort_index()
        if not chosen.index.equals(known):
            tokens = known.isin(chosen.index).sum()
            raise InputError(
                f"{path}: found {len(chosen)} exits of {tokens} tokens for {criterion} at threshold"
                f" {threshold:g}, expected one of each of the {len(known)} tokens of"
                f" {losses.path}."
            )
        exits[criterion, threshold] = torch.tensor(chosen.to_numpy(np.int64))
    return exits


def _read(table: str, path: Path) -> pd.DataFrame:
    frame = tables.read(table, path)
    if frame.empty:
        raise InputError(f"{path}: found no rows, expected rows of the table '{table}'.")
    declared = tables.columns(table).items()
    return pd.DataFrame({name: _column(path, frame, name, dtype) for name, dtype in declared})


def _column(path: Path, frame: pd.DataFrame, name: str, dtype: str) -> np.ndarray:
    """The values of a column, without nulls, in the declared type."""
    expected, kinds = KINDS[dtype]
    _refuse(path, frame[frame[name].isna()], f"expected {expected} in the column {name}")
    values = frame[name].to_numpy()
    if values.dtype.kind not in kinds:
        raise InputError(
            f"{path}: found the column {name} with type {frame[name].dtype}, expected {expected}"
            " in it."
        )
    if dtype == "string":
        return values
    _refuse(path, frame[~np.isfinite(values)], f"expected {expected} in the column {name}")
    if dtype == "float64":
        return values
    _refuse(path, frame[values % 1 != 0], f"expected {expected} in the column {name}")
    return values.astype(np.int64)


def _floats(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    """An array of numbers as floats of its precision."""
    if values.dtype.kind not in KINDS["float64"][1]:
        raise InputError(f"{path}: found {name} with type {values.dtype}, expected numbers.")
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def _check_depths(path: Path, depths: int) -> None:
    if depths < 2:
        raise InputError(
            f"{path}: found losses at {depths} depth, expected at least 2 depths to choose from."
        )


def _refuse(path: Path, wrong: pd.DataFrame, expected: str) -> None:
    """Raise InputError with the first of the wrong rows, if there is one."""
    if len(wrong):
        first = wrong[:1].to_dict("records")[0]
        found = ", ".join(f"{name} {value}" for name, value in first.items())
        raise InputError(f"{path}: found {found}, {expected}.")


# --- the arena ------------------------------------------------------------------------------------


def compare(losses: Losses, exits: Exits, seed: int = 0) -> pd.DataFrame:
    """The table "arena" without its column `run`.

    Exits are compared with cost-matched exits and with the budget oracle.
    """
    own, cost_matched, regret, frontier = [], [], [], []
    for (criterion, threshold), depths in exits.items():
        point = {"criterion": criterion, "threshold": threshold}
        own.append(losses.at(depths, **point, group=GROUP))
        fixed = torch.from_numpy(fixed_evaluations(depths.numpy()[None, None])).flatten()
        for reference, plan in ((RANDOM, depths), (FIXED, fixed)):
            spent = plan.double().mean().expand(len(plan))
            nats = mean_over_draws(losses.nats, plan)
            cost_matched.append(losses.rows(nats, spent, **point, reference=reference))
    all_depths = dict(exits)
    for depth in range(1, losses.depths + 1):
        all_depths[FIXED, float(depth)] = torch.full((len(losses.tokens),), depth)
    for (criterion, threshold), depths in all_depths.items():
        regret.append(losses.at(depths, criterion=criterion, threshold=threshold, group=GROUP))
    costs = exit_costs(len(losses.nats), losses.nats.device)
    for price in PRICES:
        depths = costs[cheapest_exits(losses.nats, price)]
        frontier.append(losses.at(depths, group=GROUP, price=price))
    measured = pd.concat(own)
    return summarise(
        quality=measured.drop(columns=["evaluations", "group"]),
        exit_loops=measured.drop(columns="ce"),
        cost_matched=pd.concat(cost_matched),
        regret=pd.concat(regret),
        frontier=pd.concat(frontier),
        seed=seed,
    )


def mean_over_draws(nats: Tensor, plan: Tensor) -> Tensor:
    """Expected loss (M,) of each token if the depths of a plan (M,) go to tokens at random.

    It is the mean of `exits.references.random_plan` over all draws: there, too, each token has
    every depth with its share in the text. nats (K + 1, M), of which depth 0 is in no plan.
    """
    shares = torch.bincount(plan, minlength=len(nats)).double() / len(plan)  # (K + 1,)
    return shares[1:].to(nats.dtype) @ nats[1:]


def main(arguments: argparse.Namespace) -> None:
    losses = read_losses(arguments.losses)
    exits = read_exits(arguments.exits, losses)
    write_arena(losses, exits, arguments.exits.stem, arguments.folder)


def write_arena(losses: Losses, exits: Exits, name: str, folder: Path) -> None:
    """Write arena.md, arena.pdf and arena.parquet to a folder, and print the summary.

    `name` is that of the gates.
    """
    arena = compare(losses, exits).assign(run=name)
    folder.mkdir(parents=True, exist_ok=True)
    tables.write("arena", arena[list(tables.columns("arena"))], folder / "arena.parquet")
    depths = {name: values[0] for name, values in split_half(losses.nats[:, None]).items()}
    halves = reliability(losses.means(**depths).assign(group=GROUP))
    values = {
        "run": name,
        "text": losses.path.name,
        "tokens": len(losses.tokens),
        "loops": losses.depths,
        "draws": "all",
    }
    with replacing(folder / "arena.md") as temporary:
        temporary.write_text(page(arena, halves, values), encoding="utf-8")
    context = style.FigureContext(name, losses.path.name, losses.depths)
    style.save(draw_arena(arena, context=context), folder / "arena.pdf")
    print(summary(arena))


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "losses",
        type=Path,
        help="parquet table of losses: document, sequence, position, depth, loss",
    )
    options.add_argument(
        "exits", type=Path, help="parquet table: criterion, threshold, sequence, position, depth"
    )
    options.add_argument("folder", type=Path, help="folder of the results")
    command.run(main, options)
