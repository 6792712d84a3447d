"""Random exits with the depths of a rule, for engines that take prescribed depths."""

import json
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twoscale.base import InputError, did_you_mean


def random_exits(
    path: Path, criterion: str | None = None, threshold: float | None = None, seed: int = 0
) -> dict[str, list[int]]:
    """The depths of a table of exits, dealt to its tokens at random: sequence -> depths in order.

    They have the same histogram over the whole table, as `depths_by_request` of vllm-rlt's mode
    `trace` takes them.

    Args:
        path: Parquet table with `criterion`, `threshold`, `sequence`, `position`, `depth`, such as
            exits.parquet of `twoscale exits check --out`.
        criterion: Which of the criteria; may be left out where the table has one.
        threshold: Which of its thresholds; may be left out where there is one.
        seed: Of the draw.
    """
    table = pq.read_table(path)
    expected = ("criterion", "threshold", "sequence", "position", "depth")
    missing = [name for name in expected if name not in table.column_names]
    if missing:
        raise InputError(
            f"{path}: found no column {missing[0]}, expected the columns {', '.join(expected)}."
        )
    for name, wanted in (("criterion", criterion), ("threshold", threshold)):
        known = table[name].unique().to_pylist()
        if wanted is None and len(known) > 1:
            listed = ", ".join(map(str, known[:12]))
            raise InputError(
                f"{path}: found {len(known)} values of {name}, expected --{name}: {listed}."
            )
        if wanted is not None:
            if wanted not in known:
                meant = did_you_mean(str(wanted), list(map(str, known)))
                raise InputError(f"{path}: found no {name} {wanted}, expected one of it{meant}.")
            table = table.filter(pc.equal(table[name], wanted))
    table = table.sort_by([("sequence", "ascending"), ("position", "ascending")])
    depths = np.random.default_rng(seed).permutation(table["depth"].to_numpy())
    dealt: dict[str, list[int]] = {}
    for sequence, depth in zip(table["sequence"].to_pylist(), depths.tolist(), strict=True):
        dealt.setdefault(str(sequence), []).append(depth)
    return dealt


def write(dealt: dict[str, list[int]], path: Path | None) -> None:
    """Write the depths as JSON, to standard output without a path."""
    text = json.dumps(dealt)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")
