import json
import os
import subprocess
import sys
import sysconfig
from itertools import islice
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twoscale import text
from twoscale.errors import InputError
from twoscale.settings import Data

SCRIPTS = Path(__file__).parents[2] / "scripts"
TEXTS = [f"document {number} " + "word " * (number % 7) for number in range(200)]


def data(path, **changes):
    values = {
        "source": "parquet",
        "path": str(path),
        "repository": "nobody/nothing",
        "subset": "sample",
        "revision": "main",
        "characters": None,
        "text_shards": 3,
        "held_out_fraction": 0.2,
    }
    return Data(**values | changes)


def write_parquet(path, compression="zstd", **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression=compression)
    return path


def rows_of(shards):
    return [row for shard in shards for row in pq.read_table(shard).to_pylist()]


def not_utf8(*values):
    """A string array whose bytes nobody checked, as a careless writer leaves it."""
    binary = pa.array(values, type=pa.binary())
    return pa.StringArray.from_buffers(len(binary), *binary.buffers()[1:])


# --- python_docs


@pytest.fixture
def fake_library(tmp_path, monkeypatch):
    """A function that lays out a small standard library at a place and makes Python's own point there."""

    def lay_out(place):
        files = {
            "zeta.py": '"""Last."""\nraise SystemExit("imported")\n',
            "alpha/__init__.py": '"""Package."""\n',
            "alpha/inner.py": (
                "import os\n"
                "if os.name:\n"
                "    class First:\n"
                '        """A class."""\n'
                "        def method(self):\n"
                '            """A method."""\n'
                "def second():\n"
                '    """A function."""\n'
            ),
            "silent.py": "x = 1\n",
            "test/test_alpha.py": '"""A test."""\n',
            "site-packages/other.py": '"""Not of the library."""\n',
        }
        for name, content in files.items():
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / place))
        return [document for document in text.python_docs() if not document.name.startswith("topic ")]

    return lay_out


def test_docstrings_come_from_the_library_alone_sorted_by_module_without_importing_it(fake_library):
    assert [document.name for document in fake_library("here")] == ["alpha", "alpha.inner", "zeta"]


def test_docstrings_stand_in_source_order_under_their_qualified_names(fake_library):
    inner = fake_library("here")[1].text
    assert inner == (
        "alpha.inner.First\n\nA class.\n\n\nalpha.inner.First.method\n\nA method.\n\n\n"
        "alpha.inner.second\n\nA function."
    )


def test_python_docs_do_not_depend_on_where_python_is_installed(fake_library):
    assert fake_library("here") == fake_library("there/below")


def test_python_docs_of_the_running_python_begin_with_the_help_topics_and_name_no_path():
    found = list(islice(text.python_docs(), 120))
    assert found == list(islice(text.python_docs(), 120))
    names = [document.name for document in found]
    topics = [name for name in names if name.startswith("topic ")]
    assert names[: len(topics)] == topics == sorted(topics)
    assert "topic assert" in topics
    assert names[len(topics) :] == sorted(names[len(topics) :])
    assert all(document.text.strip() for document in found)
    assert not any(sysconfig.get_path("stdlib") in document.text for document in found)


# --- parquet


def test_parquet_folder_is_read_recursively_in_the_order_of_paths(tmp_path):
    write_parquet(tmp_path / "b.parquet", text=["third"])
    write_parquet(tmp_path / "a/2.parquet", text=["second"])
    write_parquet(tmp_path / "a/1.parquet", text=["first"])
    (tmp_path / "notes.txt").write_text("no parquet")
    found = list(text.documents(data(tmp_path)))
    assert found == [("a/1.parquet:0", "first"), ("a/2.parquet:0", "second"), ("b.parquet:0", "third")]


def test_parquet_rows_are_named_by_id_where_there_is_one(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=["one", "two"], id=["urn:1", None], url=["u", "v"])
    assert list(text.documents(data(file))) == [("urn:1", "one"), ("x.parquet:1", "two")]


def test_parquet_numbers_as_id_become_names(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=["one"], id=[7])
    assert list(text.documents(data(file))) == [("7", "one")]


def test_null_and_empty_texts_are_skipped_and_still_counted_as_rows(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=[None, "", "kept", None, "Ünï\u2028çödé \0 😀"])
    assert list(text.documents(data(file))) == [("x.parquet:2", "kept"), ("x.parquet:4", "Ünï\u2028çödé \0 😀")]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_string_column_is_text(tmp_path, kind):
    file = write_parquet(tmp_path / "x.parquet", text=pa.array(["one", None, "one"]).cast(kind))
    assert [document.text for document in text.documents(data(file))] == ["one", "one"]


def test_row_numbers_go_on_across_batches_and_row_groups(tmp_path):
    count = 2 * text.ROWS + 10
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [f"t{row}" for row in range(count)]}), path, row_group_size=100)
    assert list(text.documents(data(path))) == [(f"x.parquet:{row}", f"t{row}") for row in range(count)]


def test_missing_path_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"data\.path: found nothing at .*gone, expected a parquet file"):
        list(text.documents(data(tmp_path / "gone")))


def test_folder_without_parquet_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no \*\.parquet file under"):
        list(text.documents(data(tmp_path)))


def test_missing_text_column_is_refused_with_the_columns_found(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", content=["one"], id=["1"])
    with pytest.raises(InputError, match=r"x\.parquet: found the columns content, id; expected one named text"):
        list(text.documents(data(file)))


def test_file_that_is_no_parquet_is_refused(tmp_path):
    file = tmp_path / "x.parquet"
    for content in (b"", b"not parquet at all", b"PAR1 neither PAR1"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"x\.parquet: cannot be read as a parquet file"):
            list(text.documents(data(file)))


def test_truncated_parquet_is_refused(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=TEXTS)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"x\.parquet: cannot be read as a parquet file"):
        list(text.documents(data(file)))


def test_parquet_with_a_damaged_page_is_refused(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=TEXTS)
    content = bytearray(file.read_bytes())
    content[20:200] = bytes(180)
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.parquet: cannot be read as a parquet file"):
        list(text.documents(data(file)))


def test_binary_column_is_refused_with_file_and_row(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=pa.array([None, b"one"], type=pa.binary()))
    with pytest.raises(InputError, match=r"x\.parquet: found a value of type binary in row 1, expected text"):
        list(text.documents(data(file)))


def test_numbers_as_text_are_refused_with_file_and_row(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=[1, 2])
    with pytest.raises(InputError, match=r"x\.parquet: found a value of type int64 in row 0"):
        list(text.documents(data(file)))


def test_bytes_that_are_not_utf8_are_refused_with_file_and_row(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=not_utf8(b"fine", b"\xff\xfe broken", b"fine"))
    with pytest.raises(InputError, match=r"x\.parquet: found bytes that are not UTF-8 .* in row 1\."):
        list(text.documents(data(file)))


def test_unknown_source_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"data\.source: found 'web', expected python_docs, parquet or fineweb"):
        text.documents(data(tmp_path, source="web"))


# --- fineweb


def prepare_in_a_process(tmp_path, repository, **changes):
    """Run the entry script offline; returns the finished process and the shard it was to write."""
    settings = vars(data("", source="fineweb", repository=str(repository), **changes))
    output = tmp_path / "out/shard.parquet"
    finished = subprocess.run(
        [sys.executable, SCRIPTS / "prepare_text.py", "--settings", json.dumps({"data": settings}), "--output", output],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return finished, output


@pytest.fixture
def hub_repository(tmp_path, monkeypatch):
    """A folder laid out as a data set repository with one subset, two files and columns beside the text."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "repository"
    for number in range(2):
        texts = [f"file {number} {text}" for text in TEXTS]
        names = [f"{number}-{row}" for row in range(len(texts))]
        write_parquet(root / f"sample/10/{number:03d}.parquet", id=names, text=texts, score=[0.5] * len(texts))
    (root / "README.md").write_text("---\nconfigs:\n- config_name: sample\n  data_files: sample/10/*\n---\n")
    return root


def test_fineweb_stops_early_and_lets_the_interpreter_end_in_order(tmp_path, hub_repository):
    finished, output = prepare_in_a_process(tmp_path, hub_repository, characters=1000)
    assert finished.returncode == 0, finished.stderr
    rows = rows_of([output])
    assert [row["document"] for row in rows[:2]] == ["0-0", "0-1"]
    assert sum(len(row["text"]) for row in rows[:-1]) < 1000 <= sum(len(row["text"]) for row in rows)


def test_fineweb_reads_the_files_of_the_subset_one_after_the_other(hub_repository):
    found = list(text.fineweb(str(hub_repository), "sample", "main"))
    assert [document.name for document in found] == [f"{file}-{row}" for file in range(2) for row in range(len(TEXTS))]


def test_unknown_subset_is_refused_naming_those_there_are(hub_repository):
    with pytest.raises(InputError, match=r"subset 'other', .*sample"):
        list(text.fineweb(str(hub_repository), "other", "main"))


def test_unreachable_repository_ends_in_one_sentence_that_says_what_to_do(tmp_path):
    finished, output = prepare_in_a_process(tmp_path, "nobody/nothing")
    assert finished.returncode == 1
    assert "nobody/nothing: could not be read" in finished.stderr
    assert "data.source: parquet for local files" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert list(output.parent.iterdir()) == []


# --- the held-out part


def test_held_out_share_is_near_the_fraction():
    share = sum(text.is_held_out(f"text {number}", 0.1) for number in range(5000)) / 5000
    assert share == pytest.approx(0.1, abs=0.02)


def test_a_larger_fraction_only_adds_documents():
    small, large = ({t for t in TEXTS if text.is_held_out(t, fraction)} for fraction in (0.1, 0.3))
    assert small < large


def test_fractions_zero_and_one_take_nothing_and_everything():
    assert not any(text.is_held_out(t, 0.0) for t in TEXTS)
    assert all(text.is_held_out(t, 1.0) for t in TEXTS)


# --- shards


@pytest.fixture
def source(tmp_path):
    return write_parquet(tmp_path / "source.parquet", text=TEXTS)


@pytest.fixture
def shards(tmp_path):
    return [tmp_path / f"text/shard_{number}.parquet" for number in range(3)]


def test_every_document_is_dealt_out_once_and_in_turn(source, shards):
    text.prepare_text(data(source), shards)
    for number, shard in enumerate(shards):
        assert [row["text"] for row in rows_of([shard])] == TEXTS[number::3]


def test_the_held_out_column_is_the_function_of_the_text(source, shards):
    text.prepare_text(data(source), shards)
    assert all(row["held_out"] == text.is_held_out(row["text"], 0.2) for row in rows_of(shards))


def test_copies_of_a_document_stand_on_one_side(tmp_path, shards):
    text.prepare_text(data(write_parquet(tmp_path / "s.parquet", text=TEXTS * 2)), shards)
    sides = {(row["text"], row["held_out"]) for row in rows_of(shards)}
    assert len(sides) == len(TEXTS)


def test_the_same_source_gives_the_same_bytes(source, shards):
    text.prepare_text(data(source), shards)
    first = [shard.read_bytes() for shard in shards]
    text.prepare_text(data(source), shards)
    assert [shard.read_bytes() for shard in shards] == first


def test_collecting_stops_at_the_document_that_reaches_the_characters(source, shards):
    text.prepare_text(data(source, characters=500), shards)
    lengths = sorted(len(row["text"]) for row in rows_of(shards))
    count = len(lengths)
    assert sum(lengths) == sum(len(t) for t in TEXTS[:count])
    assert sum(len(t) for t in TEXTS[: count - 1]) < 500 <= sum(lengths)


def test_more_text_than_a_row_group_holds_is_written_whole(source, shards, monkeypatch):
    monkeypatch.setattr(text, "ROW_GROUP_CHARACTERS", 300)
    text.prepare_text(data(source), shards)
    assert pq.ParquetFile(shards[0]).num_row_groups > 3
    assert sorted(row["text"] for row in rows_of(shards)) == sorted(TEXTS)


def test_more_shards_than_documents_leaves_empty_shards_that_can_be_read(tmp_path):
    few = write_parquet(tmp_path / "few.parquet", text=TEXTS[:10])
    shards = [tmp_path / f"shard_{number}.parquet" for number in range(20)]
    text.prepare_text(data(few), shards)
    assert sum(len(texts) for _, texts in text.stored(shards)) == 10


@pytest.mark.parametrize(("fraction", "part"), [(0.0, "held-out"), (1.0, "training")])
def test_a_part_without_documents_is_refused_and_nothing_is_written(source, shards, fraction, part):
    with pytest.raises(InputError, match=f"found no {part} document among 200"):
        text.prepare_text(data(source, held_out_fraction=fraction), shards)
    assert list(shards[0].parent.iterdir()) == []


def test_a_source_that_fails_late_leaves_the_shards_of_before(tmp_path, source, shards):
    text.prepare_text(data(source), shards)
    before = [shard.read_bytes() for shard in shards]
    broken = write_parquet(tmp_path / "broken.parquet", text=not_utf8(*[b"fine"] * 500, b"\xff"))
    with pytest.raises(InputError, match="row 500"):
        text.prepare_text(data(broken), shards)
    assert [shard.read_bytes() for shard in shards] == before
    assert sorted(shards[0].parent.iterdir()) == shards


def test_stored_text_comes_shard_by_shard(source, shards):
    text.prepare_text(data(source), shards)
    read = [t for _, texts in text.stored(shards) for t in texts]
    assert read == TEXTS[0::3] + TEXTS[1::3] + TEXTS[2::3]


def test_training_texts_are_those_not_held_out(source, shards):
    text.prepare_text(data(source), shards)
    assert sorted(text.training_texts(shards)) == sorted(t for t in TEXTS if not text.is_held_out(t, 0.2))


def test_shards_that_prepare_text_did_not_write_are_refused(tmp_path, source):
    corrupt = tmp_path / "corrupt.parquet"
    corrupt.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"source\.parquet: found the columns text; expected document, held_out, text"):
        list(text.stored([source]))
    for path in (corrupt, tmp_path / "gone.parquet"):
        with pytest.raises(InputError, match=f"{path.name}: cannot be read as a shard of text"):
            list(text.stored([path]))
