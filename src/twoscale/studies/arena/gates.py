"""The arena for exits that another program chose: from losses per token and depth, without a model.

A depth is the number of evaluations of the loop after which a token's loss was measured. The loss of a token at a depth
is taken not to depend on the depths at which other tokens leave, as where all tokens run every depth and the exits
only choose what is read out. Random exits and fixed loops are then exact: the mean over all draws is computed.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from twoscale import tables
from twoscale.base import InputError, replacing
from twoscale.exits.cost_matched import FIXED, RANDOM, fixed_evaluations
from twoscale.exits.oracle import cheapest_exits, converged_within, exit_costs
from twoscale.figures import style
from twoscale.studies.arena import compare, figure, page
from twoscale.studies.arena.regret import PRICES
from twoscale.studies.arena.regret import compare as beside_oracle

GROUP = "loop"  # the one looped group of these tables
TOKEN, POINT = ["sequence", "position"], ["criterion", "threshold"]
KINDS = {"string": "OU", "float64": "iuf", "int32": "iu"}  # dtype of a declared column -> kinds of NumPy
LIMITS = """\
No model was run: a token's loss at a depth is taken from {text}, whichever depths the other tokens leave at. If later
tokens read keys and values that depend on earlier exits, the numbers are about a reading in which every token runs all
depths. Random exits and fixed loops are means over all draws.
"""
REGRET = """\
The **regret** is what a criterion loses beside an oracle that knows the loss of every token at every depth and chooses
one exit per token: in nats at the same evaluations, and in evaluations at the same nats.
"""
CONVERGED = """\
A token is converged from the first depth from which its loss stays at most {tolerance} nats above its loss at depth
{loops}. *Extra* are the evaluations after that of tokens that leave converged, *lost* the nats of those that leave
before.
"""


@dataclass(frozen=True)
class Losses:
    """Losses of M tokens at the depths 1 … K.

    Attributes:
        path: Where they are from.
        tokens: document, sequence and position of each token, ordered by the last two.
        nats: float64 (K + 1, M); infinite at depth 0, where no token can leave.
    """

    path: Path
    tokens: pd.DataFrame
    nats: Tensor

    @property
    def depths(self) -> int:
        return len(self.nats) - 1

    def at(self, depths: Tensor) -> Tensor:
        """The loss (M,) of tokens that leave at the depths (M,)."""
        return self.nats.gather(0, depths[None])[0]

    def rows(self, **columns: Tensor) -> pd.DataFrame:
        """Means of columns (M,) over the tokens of each sequence, with its keys."""
        values = {name: column.double().numpy() for name, column in columns.items()}
        by_sequence = self.tokens[["sequence", "document"]].assign(**values).groupby(["sequence", "document"])
        return by_sequence.mean().assign(tokens=by_sequence.size()).reset_index()


def read_losses(path: Path) -> Losses:
    """Read the table "depth_losses". Raises InputError unless every token has one finite loss at each depth 1 … K."""
    frame = _read("depth_losses", path)
    _check_once(frame, [*TOKEN, "depth"], path)
    if len(wrong := frame[~np.isfinite(frame["loss"])]):
        raise InputError(f"{path}: found the loss {_row(wrong, [*TOKEN, 'depth', 'loss'])}, expected a finite number.")
    by_token = frame.sort_values([*TOKEN, "depth"]).groupby(TOKEN)["depth"]
    depths = int(frame["depth"].max())
    counts = by_token.agg(["min", "size"])
    if len(wrong := counts[(counts["size"] != depths) | (counts["min"] != 1)].reset_index()):
        raise InputError(
            f"{path}: found {wrong['size'].iloc[0]} depths for the token {_row(wrong, TOKEN)}, expected each of "
            f"1 … {depths} for every token."
        )
    if (frame.groupby("sequence")["document"].nunique() > 1).any():
        raise InputError(f"{path}: found a sequence with several documents, expected one document per sequence.")
    ordered = frame.sort_values([*TOKEN, "depth"])
    nats = torch.from_numpy(ordered["loss"].to_numpy(np.float64).reshape(-1, depths).T.copy())  # (K, M)
    tokens = ordered.loc[ordered["depth"] == 1, ["document", *TOKEN]].reset_index(drop=True)
    return Losses(path, tokens, torch.cat([torch.full_like(nats[:1], torch.inf), nats]))


def read_exits(path: Path, losses: Losses) -> dict[tuple[str, float], Tensor]:
    """Read the table "gate_exits": (criterion, threshold) -> the depth int64 (M,) at which each token leaves.

    Raises InputError unless every criterion has, at each of its thresholds, one exit within the depths of each token.
    """
    frame = _read("gate_exits", path)
    _check_once(frame, [*POINT, *TOKEN], path)
    if len(wrong := frame[~frame["depth"].between(1, losses.depths)]):
        found = _row(wrong, [*POINT, *TOKEN, "depth"])
        raise InputError(
            f"{path}: found the exit {found}, expected a depth of 1 … {losses.depths} as in {losses.path}."
        )
    if (frame["criterion"] == FIXED).any():
        raise InputError(
            f"{path}: found the criterion {FIXED}, which is reserved for fixed loops, expected another name."
        )
    known = pd.MultiIndex.from_frame(losses.tokens[TOKEN])
    exits = {}
    for point, rows in frame.groupby(POINT, sort=False):
        chosen = rows.set_index(TOKEN)["depth"]
        missing, unknown = len(known.difference(chosen.index)), len(chosen.index.difference(known))
        if missing or unknown:
            raise InputError(
                f"{path}: found no exit of {missing} of the {len(known)} tokens of {losses.path} and exits of "
                f"{unknown} other tokens for {point[0]} at threshold {point[1]:g}, expected one exit per token."
            )
        exits[point] = torch.tensor(chosen.reindex(known).to_numpy(np.int64))
    return exits


def _read(table: str, path: Path) -> pd.DataFrame:
    """A table that another program wrote. Raises InputError for no row, for nulls, and for another type of a column."""
    frame = tables.read(table, path)
    if frame.empty:
        raise InputError(f"{path}: found no rows, expected rows of the table '{table}'.")
    for name, dtype in tables.columns(table).items():
        if name != "loss" and frame[name].isna().any():
            raise InputError(f"{path}: found a null in the column {name}, expected a value in every row.")
        if frame[name].to_numpy().dtype.kind not in KINDS[dtype]:
            raise InputError(f"{path}: found the column {name} with type {frame[name].dtype}, expected {dtype}.")
    return frame


def _check_once(frame: pd.DataFrame, keys: list[str], path: Path) -> None:
    if len(repeated := frame[frame.duplicated(keys)]):
        raise InputError(f"{path}: found several rows for {_row(repeated, keys)}, expected one.")


def _row(frame: pd.DataFrame, columns: list[str]) -> str:
    """The first row in words, as in: sequence 0, position 3."""
    return ", ".join(f"{name} {frame[name].iloc[0]}" for name in columns)


# --- the tables of the arena -----------------------------------------------------------------------------------


def compared(losses: Losses, exits: dict[tuple[str, float], Tensor], tolerance: float, seed: int = 0) -> pd.DataFrame:
    """The table "arena" without its column `run`: exits against cost-matched exits and the budget oracle.

    Args:
        losses: Of M tokens at every depth.
        exits: Depth (M,) at which each token leaves, for each criterion and threshold.
        tolerance: Nats by which the loss of a converged token stays at most above that at full depth.
        seed: Of the bootstrap.
    """
    of_gates = [_of_point(losses, point, depths) for point, depths in exits.items()]
    quality, loops, cost_matched = map(pd.concat, zip(*of_gates, strict=True))
    return compare.summarise(quality, loops, cost_matched, regret(losses, exits, tolerance), _frontier(losses), seed)


def _of_point(losses: Losses, point: tuple[str, float], depths: Tensor) -> tuple[pd.DataFrame, ...]:
    """Rows as in the tables "exit_quality", "exit_loops" and "exit_cost_matched" for one choice of exits."""
    named = dict(zip(POINT, point, strict=True))
    plans = {RANDOM: depths, FIXED: torch.from_numpy(fixed_evaluations(depths.numpy()[None, None])).flatten()}
    matched = [
        losses.rows(ce=mean_over_draws(losses.nats, plan), evaluations=plan.double().mean().expand(len(plan))).assign(
            **named, reference=reference
        )
        for reference, plan in plans.items()
    ]
    quality = losses.rows(ce=losses.at(depths)).assign(**named)
    return quality, losses.rows(evaluations=depths).assign(**named, group=GROUP), pd.concat(matched)


def mean_over_draws(nats: Tensor, plan: Tensor) -> Tensor:
    """Expected loss (M,) of each token if the depths of a plan (M,) are dealt to the tokens at random.

    It is the mean of `exits.cost_matched.random_plan` over all draws: there, too, each token has every depth with its
    share in the text. nats (K + 1, M), of which depth 0 is in no plan.
    """
    shares = torch.bincount(plan, minlength=len(nats)).double() / len(plan)
    return shares[1:] @ nats[1:]


def regret(losses: Losses, exits: dict[tuple[str, float], Tensor], tolerance: float) -> pd.DataFrame:
    """Rows as in the table "exit_regret", of the exits and of fixed loops at every depth."""
    fixed = {(FIXED, float(k)): torch.full((len(losses.tokens),), k) for k in range(1, losses.depths + 1)}
    first = converged_within(losses.nats, tolerance)  # (M,)
    rows = []
    for point, depths in (exits | fixed).items():
        ce = losses.at(depths)
        beside = beside_oracle(depths, depths, ce - losses.nats[-1], first)
        named = dict(zip(POINT, point, strict=True)) | {"oracle": "loss", "group": GROUP}
        rows.append(losses.rows(evaluations=depths, ce=ce, **beside).assign(**named))
    return pd.concat(rows)


def _frontier(losses: Losses) -> pd.DataFrame:
    """Rows as in the table "oracle_frontier"."""
    costs, rows = exit_costs(len(losses.nats), losses.nats.device), []
    for price in PRICES:
        chosen = cheapest_exits(losses.nats, price)
        rows.append(losses.rows(evaluations=costs[chosen], ce=losses.at(chosen)).assign(group=GROUP, price=price))
    return pd.concat(rows)


def write(losses_path: Path, exits_path: Path, folder: Path, tolerance: float) -> str:
    """Write arena.parquet, convergence.parquet, arena.md and arena.pdf into the folder; returns the summary."""
    losses = read_losses(losses_path)
    exits = read_exits(exits_path, losses)
    arena = compared(losses, exits, tolerance).assign(run=exits_path.stem)
    converged = compare.convergence(regret(losses, exits, tolerance)).assign(run=exits_path.stem)
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in (("arena", arena), ("convergence", converged)):
        tables.write(name, frame[list(tables.columns(name))], folder / f"{name}.parquet")
    with replacing(folder / "arena.md") as temporary:
        temporary.write_text(_page(losses, arena, converged, tolerance), encoding="utf-8")
    context = style.FigureContext(exits_path.stem, losses_path.name, losses.depths)
    style.save(figure.draw(arena, context=context), folder / "arena.pdf")
    return page.summary(arena)


def _page(losses: Losses, arena: pd.DataFrame, converged: pd.DataFrame, tolerance: float) -> str:
    values = {
        "run": arena["run"].iloc[0],
        "text": losses.path.name,
        "draws": "the mean of all",
        "tokens": len(losses.tokens),
        "loops": losses.depths,
        "tolerance": f"{tolerance:g}",
    }
    parts = {"header": page.HEADER + "\n" + LIMITS, "regret": REGRET, "converged": CONVERGED}
    return page.page(arena, converged, values, parts)
