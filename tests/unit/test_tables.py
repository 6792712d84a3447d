"""tables: every parquet file has the columns that it is declared to have."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from twoscale import tables
from twoscale.base import InputError

UNITS = {"step_norm": "state", "cosine": "1"}


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
    }


def frame_of(table: str) -> pd.DataFrame:
    """Two rows with a value of the declared type in every column, and in two measures if the table
    has them.
    """
    values = {"string": ["a", "b"], "bool": [True, False]}
    return pd.DataFrame(
        {
            name: pd.Series(values.get(dtype, [1, 2]), dtype=None if dtype in values else dtype)
            for name, dtype in columns_of(table).items()
        }
    )


def columns_of(table: str) -> dict[str, str]:
    return tables.columns(table) | (
        dict.fromkeys(UNITS, "float32") if table in tables.MEASURED else {}
    )


@pytest.mark.parametrize("table", tables.declared())
def test_every_table_comes_back_as_it_was_written(table, tmp_path):
    path = tmp_path / f"{table}.parquet"
    frame = frame_of(table)
    tables.write(table, frame, path)
    read = tables.read(table, path)
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    stored = {
        field.name: str(field.type).replace("double", "float64") for field in pq.read_schema(path)
    }
    narrow = {"float": "float32"}
    assert {name: narrow.get(dtype, dtype) for name, dtype in stored.items()} == columns_of(table)


def test_nulls_and_nans_are_written_as_null_and_read_as_missing(tmp_path):
    path = tmp_path / "training.parquet"
    rows = training_rows()
    rows["gradient_norm"] = np.array([1.0, np.nan, 2.0])
    with tables.writing("training", path) as append:
        append(rows)
    read = tables.read("training", path)
    assert read["held_out_loss"].isna().tolist() == [True, True, False]
    assert read["gradient_norm"].isna().tolist() == [False, True, False]
    assert pq.read_table(path)["gradient_norm"].null_count == 1


@pytest.mark.parametrize(
    "kept", [lambda frame: frame.assign(ce=np.inf), lambda frame: frame.assign(ce=np.nan)]
)
def test_a_loss_that_is_not_finite_is_neither_written_nor_read(kept, tmp_path):
    frame, path = frame_of("scaling_quality"), tmp_path / "quality.parquet"
    tables.write("scaling_quality", frame, path)
    with pytest.raises(
        InputError,
        match=r"quality.parquet: found iteration \d, loops .*, ce (nan|inf), expected finite",
    ):
        tables.write("scaling_quality", kept(frame), path)
    kept(tables.read("scaling_quality", path)).to_parquet(
        path, index=False
    )  # as another program or version writes it
    with pytest.raises(
        InputError, match=r"quality.parquet: found .*, ce (nan|inf), expected finite numbers"
    ):
        tables.read("scaling_quality", path)


def test_statistics_of_states_that_are_not_finite_are_not_read(tmp_path):
    """A released table, say: nulls of other measures have a meaning, those of a state's norm have
    none.
    """
    frame, path = frame_of("loop_sequences"), tmp_path / "loop_sequences.parquet"
    frame = frame.assign(measure=["cosine", "state_norm"], nulls=[3, 0])
    tables.write("loop_sequences", frame, path)
    assert len(tables.read("loop_sequences", path)) == 2
    frame.assign(nulls=[3, 1]).to_parquet(path, index=False)
    with pytest.raises(
        InputError, match=r"loop_sequences.parquet: found .*measure state_norm, .*nulls 1, mean"
    ):
        tables.read("loop_sequences", path)


def test_batches_are_appended_in_order_and_go_to_disk_as_they_come(tmp_path):
    path = tmp_path / "training.parquet"
    with tables.writing("training", path) as append:
        append(training_rows(2))
        append(training_rows(3))
        assert not path.exists()
    assert tables.read("training", path)["iteration"].tolist() == [1, 2, 1, 2, 3]
    assert pq.ParquetFile(path).num_row_groups == 2


@pytest.mark.parametrize(("absent", "further"), [("tflops", {}), ("", {"loops_g9": [1, 2, 3]})])
def test_a_batch_with_other_columns_is_refused_and_leaves_no_file(absent, further, tmp_path):
    rows = {name: values for name, values in training_rows().items() if name != absent} | further
    written = tables.writing("training", tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="table training: columns"), written as append:
        append(rows)
    assert list(tmp_path.iterdir()) == []


def test_only_tables_with_measures_take_them_and_these_need_one(tmp_path):
    for table, units in (("drift", {"cosine": "1"}), ("trajectories", {})):
        written = tables.writing(table, tmp_path / "t.parquet", units)
        with pytest.raises(AssertionError, match=f"table {table}: measures"), written:
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        (
            "drift",
            lambda frame: frame.rename(columns={"boundary": "border"}),
            ("border", "boundary", "'drift'"),
        ),
        ("token_paths", lambda frame: frame.drop(columns=list(UNITS)), ("and measures",)),
        (
            "trajectories",
            lambda frame: frame.astype({"cosine": "float64"}),
            ("'cosine'", "double", "expected float32"),
        ),
        ("trajectories", lambda frame: frame.assign(remark="x"), ("'remark'", "expected float32")),
        ("token_paths", lambda frame: frame.drop(columns="position"), ("position", "and measures")),
    ],
)
def test_a_file_with_other_columns_is_refused_in_one_sentence(table, change, words, tmp_path):
    path = tmp_path / "t.parquet"
    change(frame_of(table)).to_parquet(path, index=False)
    with pytest.raises(InputError) as refusal:
        tables.read(table, path)
    assert all(word in str(refusal.value) for word in (str(path), *words))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [None, b"", b"PAR1 and then nothing"])
def test_a_missing_or_broken_file_is_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "drift.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        tables.read("drift", path)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "read", [tables.read, lambda *table: list(tables.batches(*table))], ids=["read", "batches"]
)
def test_rows_that_cannot_be_read_are_one_sentence(read, tmp_path):
    path = tmp_path / "drift.parquet"
    tables.write("drift", frame_of("drift"), path)
    content = path.read_bytes()
    path.write_bytes(
        content[:4] + bytes([255]) * 100 + content[104:]
    )  # a page, under a sound description
    with pytest.raises(InputError, match=r"drift.parquet: cannot be read as a parquet table \("):
        read("drift", path)
