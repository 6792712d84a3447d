"""The types of paths: statistics of tables with known content, and the figure of them."""

import pandas as pd
import pytest

from tests.figures import quantile_table
from tests.studies.paths.samples import draw_independence, draw_types, types_table
from tests.unit.test_measures import further_measures, write_tables  # noqa: F401 - a fixture
from twoscale import tables
from twoscale.base import InputError
from twoscale.dynamics.aggregate import statistics
from twoscale.studies.paths import draw

MEASURES = ("contraction_rate", "effective_dimension", "bending")


def write(frame, path):
    tables.write("token_paths", frame, path)
    return path


def path_metrics(path):
    return statistics([path], "demo", "token_paths", "path_metrics")


def path_rows(iteration, types_of_groups):
    """Table "token_paths": types_of_groups maps a group to (path type, period) of its tokens."""
    frames = []
    for group, types in types_of_groups.items():
        frame = pd.DataFrame(types, columns=["path_type", "period"])
        frames.append(
            frame.assign(group=group, iteration=iteration, sequence=0, document=0, position=range(len(frame)))
        )
    frame = pd.concat(frames, ignore_index=True)
    for number, name in enumerate(MEASURES):
        frame[name] = frame["position"] + 10.0 * number
    return frame[[*tables.columns("token_paths"), *MEASURES]]


PATH_TYPES = {"10": [("orbiting", 3), ("converging", 0), ("orbiting", 2), ("orbiting", 3)], "4": [("sliding", 0)] * 4}


def test_path_types_are_counted_per_checkpoint_group_and_period_with_shares_that_add_up(tmp_path):
    paths = [write(path_rows(iteration, PATH_TYPES), tmp_path / f"{iteration}.parquet") for iteration in (20, 0)]
    shares = draw.path_types(paths, "demo")
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
    assert draw.path_types([write(path_rows(0, {"4": []}), tmp_path / "empty.parquet")], "demo").empty


def test_path_metrics_are_statistics_over_the_tokens_of_a_group(tmp_path):
    path = write(path_rows(20, PATH_TYPES), tmp_path / "a.parquet")
    metrics = path_metrics(path).set_index(["group", "measure"])
    assert metrics.loc[("10", "contraction_rate"), ["mean", "q50", "count"]].tolist() == [1.5, 1.5, 4]
    assert metrics.loc[("4", "effective_dimension"), "q50"] == 11.5
    assert metrics.index.get_level_values("group").unique().tolist() == ["10", "4"]


@pytest.mark.parametrize(
    "drawn",
    [lambda: draw_types(types_table(()), quantile_table(draw.PATH_ROWS, ())), lambda: draw_independence(groups=())],
)
def test_a_table_without_groups_is_refused(drawn):
    with pytest.raises(InputError, match="expected at least one"):
        drawn()
