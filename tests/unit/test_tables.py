"""tables: every parquet file has the columns that it is declared to have."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from twoscale import tables
from twoscale.errors import InputError

GROUPS = ("4", "5-6")


def training_rows(count: int = 3) -> dict:
    return {
        "iteration": np.arange(1, count + 1),
        "tokens_seen": np.arange(count) * 100,
        "loss": np.linspace(5, 4, count),
        "held_out_loss": [None] * (count - 1) + [4.5],
        "learning_rate": [1e-3] * count,
        "gradient_norm": [1.0] * count,
        "tokens_per_s": [10.0] * count,
        "tflops": [0.1] * count,
        "utilisation": [None] * count,
        "loops_g4": [3] * count,
        "loops_g5-6": [4] * count,
    }


def frame_of(table: str, groups=()) -> pd.DataFrame:
    """Two rows with a value of the declared type in every column."""
    values = {"string": ["a", "b"], "bool": [True, False]}
    return pd.DataFrame(
        {
            name: pd.Series(values.get(dtype, [1, 2]), dtype=None if dtype in values else dtype)
            for name, dtype in tables.columns(table, groups).items()
        }
    )


def fail_after_a_batch(path) -> None:
    with tables.writing("training", path, GROUPS) as append:
        append(training_rows())
        raise RuntimeError("the machine stops")


def test_a_column_per_group_stands_where_the_star_stood():
    names = list(tables.columns("exit_quality", GROUPS))
    assert names[-4:] == ["steps_g4", "steps_g5-6", "evaluations_g4", "evaluations_g5-6"]
    assert not any("*" in name for name in names)
    assert list(tables.columns("training"))[-1] == "utilisation"


def test_groups_are_read_back_from_the_columns_in_their_order():
    frame = frame_of("exit_quality", ("10", "4", "5-6"))
    assert tables.groups_of(frame) == ["10", "4", "5-6"]
    assert tables.groups_of(frame, "steps") == ["10", "4", "5-6"]
    assert tables.groups_of(frame, "loops") == []


@pytest.mark.parametrize("table", tables.COLUMNS)
def test_every_table_comes_back_as_it_was_written(table, tmp_path):
    path = tmp_path / f"{table}.parquet"
    frame = frame_of(table, GROUPS)
    tables.write(table, frame, path, GROUPS)
    read = tables.read(table, path)
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    stored = {field.name: str(field.type).replace("double", "float64") for field in pq.read_schema(path)}
    narrow = {"float": "float32"}
    assert {name: narrow.get(dtype, dtype) for name, dtype in stored.items()} == tables.columns(table, GROUPS)


def test_nulls_and_nans_are_written_as_null_and_read_as_missing(tmp_path):
    path = tmp_path / "training.parquet"
    rows = training_rows()
    rows["gradient_norm"] = np.array([1.0, np.nan, 2.0])
    with tables.writing("training", path, GROUPS) as append:
        append(rows)
    read = tables.read("training", path)
    assert read["held_out_loss"].isna().tolist() == [True, True, False]
    assert read["gradient_norm"].isna().tolist() == [False, True, False]
    assert pq.read_table(path)["gradient_norm"].null_count == 1


def test_batches_are_appended_in_order_and_go_to_disk_as_they_come(tmp_path):
    path = tmp_path / "training.parquet"
    with tables.writing("training", path, GROUPS) as append:
        append(training_rows(2))
        append(training_rows(3))
        assert not path.exists()
    assert tables.read("training", path)["iteration"].tolist() == [1, 2, 1, 2, 3]
    assert pq.ParquetFile(path).num_row_groups == 2


def test_a_failure_between_two_batches_leaves_the_old_table(tmp_path):
    path = tmp_path / "training.parquet"
    tables.write("training", pd.DataFrame(training_rows()), path, GROUPS)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="the machine stops"):
        fail_after_a_batch(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["training.parquet"]


@pytest.mark.parametrize("change", ["missing", "surplus"])
def test_a_batch_with_a_wrong_column_is_refused_by_name_and_leaves_no_file(change, tmp_path):
    rows = training_rows()
    if change == "missing":
        del rows["loops_g4"]
    else:
        rows["loops_g9"] = rows["loops_g4"]
    name = "loops_g4" if change == "missing" else "loops_g9"
    with (
        pytest.raises(ValueError, match=f"training.*{name}"),
        tables.writing("training", tmp_path / "t.parquet", GROUPS) as append,
    ):
        append(rows)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_wrong_column_is_refused_by_name(tmp_path):
    path = tmp_path / "drift.parquet"
    frame_of("drift").rename(columns={"boundary": "border"}).to_parquet(path, index=False)
    with pytest.raises(InputError) as refusal:
        tables.read("drift", path)
    assert all(word in str(refusal.value) for word in (str(path), "border", "boundary", "'drift'"))


def test_a_file_of_other_groups_is_refused_where_the_groups_matter(tmp_path):
    path = tmp_path / "training.parquet"
    tables.write("training", pd.DataFrame(training_rows()), path, GROUPS)
    with pytest.raises(InputError, match="loops_g7"):
        tables.read("training", path, ("4", "7"))


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and then nothing"])
def test_a_missing_or_broken_file_is_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "drift.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        tables.read("drift", path)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)
