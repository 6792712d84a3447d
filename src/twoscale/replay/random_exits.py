"""Random exits with the depths of a rule, for engines that take prescribed depths."""

from pathlib import Path

import numpy as np
import pandas as pd

from twoscale.base import InputError, did_you_mean
from twoscale.replay.recording import read_exit_rows


def random_exits(
    path: Path, criterion: str | None = None, threshold: float | None = None, seed: int = 0
) -> dict[str, list[int]]:
    """The depths of a table of exits, dealt to its tokens at random: sequence -> depths in order.

    They have the same histogram over the whole table, as `depths_by_request` of vllm-rlt's mode
    `trace` takes them.

    Args:
        path: Table "gate_exits", such as exits.parquet of `twoscale exits check --out`.
        criterion: Which of the criteria; may be left out where the table has one.
        threshold: Which of its thresholds; may be left out where there is one.
        seed: Of the draw.
    """
    frame = read_exit_rows(path)
    for name, wanted in (("criterion", criterion), ("threshold", threshold)):
        frame = _with_value(path, frame, name, wanted)
    frame = frame.sort_values(["sequence", "position"])
    # a permutation over the whole table keeps the histogram, and with it the cost
    depths = np.random.default_rng(seed).permutation(frame["depth"].to_numpy())
    dealt: dict[str, list[int]] = {}
    for sequence, depth in zip(frame["sequence"], depths.tolist(), strict=True):
        dealt.setdefault(str(sequence), []).append(depth)
    return dealt


def _with_value(
    path: Path, frame: pd.DataFrame, name: str, wanted: str | float | None
) -> pd.DataFrame:
    """The rows with the wanted value of a column; `None` stands for the only one."""
    known = frame[name].unique().tolist()
    if wanted is None:
        if len(known) > 1:
            listed = ", ".join(map(str, known[:12]))
            found = f"{len(known)} values of {name}"
            raise InputError(f"{path}: found {found}, expected --{name}: {listed}.")
        return frame
    if wanted not in known:
        meant = did_you_mean(str(wanted), list(map(str, known)))
        raise InputError(f"{path}: found no {name} {wanted}, expected one of it{meant}.")
    return frame[frame[name] == wanted]
