"""The types of paths: statistics of tables with known content, and the figure of them."""

import pandas as pd
import pytest

from tests.figures import quantile_table
from tests.studies.paths.samples import draw_independence, draw_types, types_table
from twoscale import tables
from twoscale.base import InputError
from twoscale.dynamics import aggregate
from twoscale.studies.paths import draw

MEASURES = ("contraction_rate", "effective_dimension", "bending")


def write(frame, path):
    tables.write("token_paths", frame, path)
    return path


def path_rows(iteration, types_of_groups):
    """Table "token_paths": types_of_groups maps a group to (path type, period) of its tokens."""
    rows = [
        {
            "iteration": iteration,
            "group": group,
            "position": place,
            "path_type": path_type,
            "period": period,
        }
        for group, types in types_of_groups.items()
        for place, (path_type, period) in enumerate(types)
    ]
    frame = pd.DataFrame(rows, columns=["iteration", "group", "position", "path_type", "period"])
    frame = frame.assign(sequence=0, document=0, **dict.fromkeys(MEASURES, 0.0))
    return frame[[*tables.columns("token_paths"), *MEASURES]]


PATH_TYPES = {
    "10": [("orbiting", 3), ("converging", 0), ("orbiting", 2), ("orbiting", 3)],
    "4": [("sliding", 0)] * 4,
}


def test_path_types_are_counted_per_checkpoint_group_and_period_with_shares_that_add_up(tmp_path):
    paths = [
        write(path_rows(iteration, PATH_TYPES), tmp_path / f"{iteration}.parquet")
        for iteration in (20, 0)
    ]
    shares = aggregate.path_types(paths, "demo")
    assert list(shares.columns) == list(tables.columns("path_types"))
    assert shares["iteration"].tolist() == [0] * 4 + [20] * 4
    first = shares[shares["iteration"] == 0].drop(columns=["run", "iteration"])
    assert first.to_numpy().tolist() == [
        ["10", "converging", 0, 1, 0.25],
        ["10", "orbiting", 2, 1, 0.25],
        ["10", "orbiting", 3, 2, 0.5],
        ["4", "sliding", 0, 4, 1.0],
    ]
    tables.write("path_types", shares, tmp_path / "path_types.parquet")
    assert aggregate.path_types(
        [write(path_rows(0, {"4": []}), tmp_path / "empty.parquet")], "demo"
    ).empty


@pytest.mark.parametrize(
    "drawn",
    [
        lambda: draw_types(types_table(()), quantile_table(draw.PATH_ROWS, ())),
        lambda: draw_independence(groups=()),
    ],
)
def test_a_table_without_groups_is_refused(drawn):
    with pytest.raises(InputError, match="expected at least one"):
        drawn()
