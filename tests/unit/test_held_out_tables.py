"""Held-out sequences that are not consecutive: all tables name them alike, and their noise is that
of their number.
"""

import numpy as np
import pytest

from tests import small
from tests.held_out import (
    CHECKPOINT,
    CHOSEN,
    LOOPS,
    MODEL,
    SEED,
    TRAJECTORIES,
    assert_numbered,
    exits,
    loss_under_own_noise,
)
from twoscale import tables
from twoscale.config import PathTypesConfig, ScalingConfig
from twoscale.dynamics import trajectories
from twoscale.exits import benchmark
from twoscale.exits.evaluation import measure_scaling
from twoscale.training.trainer import held_out_loss

SCALING = ScalingConfig(loops=(LOOPS,), batch_size=2)


def extracted(folder):
    """The tables of the trajectories of CHOSEN by name."""
    paths = {table: folder / table for table in trajectories.TABLES}
    trajectories.extract(
        CHECKPOINT, CHOSEN, TRAJECTORIES, PathTypesConfig(window=3, max_period=2), paths
    )
    return {name: tables.read(name, path) for name, path in paths.items()}


def test_every_table_has_the_numbers_of_the_blocks_and_of_their_documents(tmp_path):
    quality = benchmark.measure_quality(
        CHECKPOINT, CHOSEN, exits(criteria={"step_norm": {"thresholds": [0.5]}})
    )
    assert {"exit_quality", "exit_loops", "exit_cost_matched"} <= quality.keys()
    scaling = measure_scaling(CHECKPOINT, CHOSEN, SCALING)
    for rows in (*extracted(tmp_path).values(), *quality.values(), scaling):
        assert_numbered(rows)


@pytest.mark.parametrize("changes", [{}, {"kv_slots": 2}], ids=["in parallel", "by position"])
def test_quality_is_under_the_noise_of_the_block(changes):
    rows = benchmark.measure_quality(CHECKPOINT, CHOSEN, exits(**changes))["exit_quality"]
    if not changes:
        assert [row["ce"] for row in rows] == pytest.approx(
            [loss_under_own_noise(row) for row in range(3)], rel=1e-9
        )
    renumbered = small.held_out(CHOSEN.inputs, CHOSEN.targets)
    others = benchmark.measure_quality(CHECKPOINT, renumbered, exits(**changes))["exit_quality"]
    assert rows[0]["ce"] == pytest.approx(others[0]["ce"], rel=1e-9)  # number 0 in both
    for row, other in zip(rows[1:], others[1:], strict=True):
        assert row["ce"] != pytest.approx(other["ce"], rel=1e-6)


def test_the_held_out_loss_scaling_and_quality_agree_on_every_sequence():
    expected = [loss_under_own_noise(row) for row in range(3)]
    rows = measure_scaling(CHECKPOINT, CHOSEN, SCALING)
    assert [row["ce"] for row in rows] == pytest.approx(expected, rel=1e-9)
    loss = held_out_loss(MODEL, CHOSEN, LOOPS, SEED, batch_size=2)
    assert loss == pytest.approx(np.mean(expected), rel=1e-6)  # float32
