import io
import random
import sysconfig
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twoscale import tables
from twoscale.base import InputError
from twoscale.config import DataConfig
from twoscale.data import text, text_files
from twoscale.data.bounded_parquet import ROWS

CACHE = Path("unused")  # reading parquet files writes nothing
TEXTS = [f"document {number} " + "word " * (number % 7) for number in range(200)]


def data(path, **changes):
    return DataConfig(source="parquet", path=str(path)).model_copy(update=changes)  # changes are not validated


def write_parquet(path, compression="zstd", **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression=compression)
    return path


def documents(config):
    """Name and text of all documents of a local source."""
    return [(document.name, document.text) for document in text_files.local_documents(config, CACHE)]


def not_utf8(*values):
    """A string array with unchecked bytes, as a careless writer stores it."""
    binary = pa.array(values, type=pa.binary())
    return pa.StringArray.from_buffers(len(binary), *binary.buffers()[1:])


@pytest.fixture
def fake_library(tmp_path, monkeypatch):
    """A function that writes a small standard library to a folder and makes Python use it."""

    def write(folder):
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
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / folder))
        return [document for document in text.python_docs() if not document.name.startswith("topic ")]

    return write


def test_docstrings_come_from_the_library_alone_sorted_by_module_without_importing_it(fake_library):
    assert [document.name for document in fake_library("here")] == ["alpha", "alpha.inner", "zeta"]


def test_docstrings_are_in_source_order_under_their_qualified_names(fake_library):
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


def test_parquet_folder_is_read_recursively_in_the_order_of_paths(tmp_path):
    write_parquet(tmp_path / "b.parquet", text=["third"])
    write_parquet(tmp_path / "a/2.parquet", text=["second"])
    write_parquet(tmp_path / "a/1.parquet", text=["first"])
    (tmp_path / "notes.txt").write_text("no parquet")
    found = documents(data(tmp_path))
    assert found == [("a/1.parquet:0", "first"), ("a/2.parquet:0", "second"), ("b.parquet:0", "third")]


def test_parquet_rows_are_named_by_id_where_there_is_one(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=["one", "two"], id=["urn:1", None], url=["u", "v"])
    assert documents(data(file)) == [("urn:1", "one"), ("x.parquet:1", "two")]


def test_parquet_numbers_as_id_become_names(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=["one"], id=[7])
    assert documents(data(file)) == [("7", "one")]


def test_null_and_empty_texts_are_skipped_and_still_counted_as_rows(tmp_path):
    file = write_parquet(tmp_path / "x.parquet", text=[None, "", "kept", None, "Ünï\u2028çödé \0 😀"])
    assert documents(data(file)) == [("x.parquet:2", "kept"), ("x.parquet:4", "Ünï\u2028çödé \0 😀")]


@pytest.mark.parametrize("dtype", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_string_type_is_text(tmp_path, dtype):
    file = write_parquet(tmp_path / "x.parquet", text=pa.array(["one", None, "one"]).cast(dtype))
    assert [found for _, found in documents(data(file))] == ["one", "one"]


def test_row_numbers_go_on_across_batches_and_row_groups(tmp_path):
    count = 2 * ROWS + 10
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": [f"t{row}" for row in range(count)]}), path, row_group_size=100)
    assert documents(data(path)) == [(f"x.parquet:{row}", f"t{row}") for row in range(count)]


def test_reading_from_a_row_on_gives_the_rest_under_the_same_names(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"text": [None if row % 5 == 0 else f"t{row}" for row in range(40)]}), path, row_group_size=7
    )
    with path.open("rb") as opened:
        everything = list(text.rows(opened, "x", "x", 10**6))
    for first in (0, 6, 7, 20, 39, 40):
        with path.open("rb") as opened:
            assert list(text.rows(opened, "x", "x", 10**6, first)) == [
                found for found in everything if found.row >= first
            ]


def test_missing_path_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"data\.path: found nothing at .*gone, expected a file or a folder of \*\.p"):
        documents(data(tmp_path / "gone"))


WRONG_COLUMNS = {
    "no text": ({"content": ["one"], "id": ["1"]}, "found the columns content, id; expected a column named text"),
    "binary": (
        {"text": pa.array([None, b"one"], pa.binary())},
        "found a value of type binary in row 1 of the column text",
    ),
    "numbers": ({"text": [1, 2]}, "found a value of type int64 in row 0"),
    "not UTF-8": (
        {"text": not_utf8(b"fine", b"\xff\xfe broken", b"fine")},
        r"found text that is not UTF-8 .* in row 1\.",
    ),
}


@pytest.mark.parametrize(("columns", "sentence"), WRONG_COLUMNS.values(), ids=WRONG_COLUMNS)
def test_a_column_without_text_is_refused_with_file_and_row(tmp_path, columns, sentence):
    with pytest.raises(InputError, match=rf"x\.parquet: {sentence}"):
        documents(data(write_parquet(tmp_path / "x.parquet", **columns)))


def damaged(content):
    return content[:20] + bytes(180) + content[200:]


@pytest.mark.parametrize(
    "change",
    [lambda _: b"", lambda _: b"not parquet at all", lambda _: b"PAR1 neither PAR1", lambda c: c[:-100], damaged],
)
def test_a_file_that_is_no_parquet_or_truncated_or_damaged_is_refused(tmp_path, change):
    file = write_parquet(tmp_path / "x.parquet", text=TEXTS)
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(InputError, match=r"x\.parquet: cannot be read as a parquet file"):
        documents(data(file))


def test_held_out_share_is_near_the_fraction():
    share = sum(text.is_held_out(f"text {number}", 0.1) for number in range(5000)) / 5000
    assert share == pytest.approx(0.1, abs=0.02)


def test_a_larger_fraction_only_adds_documents():
    small, large = ({t for t in TEXTS if text.is_held_out(t, fraction)} for fraction in (0.1, 0.3))
    assert small < large


def test_pages_of_python_docs_are_split_by_family_and_other_documents_by_their_text():
    keys = {name: text.split_key("python_docs", name, "text") for name in ("json", "json.tool", "jsonx", "topic json")}
    assert keys["json"] == keys["json.tool"]
    assert len(set(keys.values())) == 3
    assert text.split_key("python_docs", "topic if", "a") == text.split_key("python_docs", "topic class", "b")
    assert text.split_key("parquet", "json.tool", "a text") == "a text"


def test_fractions_zero_and_one_take_nothing_and_everything():
    assert not any(text.is_held_out(t, 0.0) for t in TEXTS)
    assert all(text.is_held_out(t, 1.0) for t in TEXTS)


def write_shards(tmp_path, contents):
    """Text shards, each from a list of (held out, text)."""
    shards = []
    for number, rows in enumerate(contents):
        shards.append(tmp_path / f"shard_{number}.parquet")
        with tables.writing("text", shards[-1]) as append:
            held_out, texts = zip(*rows, strict=True) if rows else ((), ())
            append({"document": [""] * len(rows), "held_out": held_out, "text": texts})
    return shards


def test_shards_are_read_in_order(tmp_path):
    shards = write_shards(tmp_path, [[(True, "a"), (False, "b")], [], [(True, "c")]])
    assert [t for _, texts in text.iter_shards(shards) for t in texts] == ["a", "b", "c"]


def test_training_texts_are_those_not_held_out(tmp_path):
    shards = write_shards(tmp_path, [[(True, "a"), (False, "b")], [(False, "c")]])
    assert list(text.training_texts(shards)) == ["b", "c"]


def test_shards_that_prepare_text_did_not_write_are_refused(tmp_path):
    source = write_parquet(tmp_path / "source.parquet", text=TEXTS)
    corrupt = tmp_path / "corrupt.parquet"
    corrupt.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"source\.parquet: found the columns text; expected document, held_out, text"):
        list(text.iter_shards([source]))
    for path in (corrupt, tmp_path / "gone.parquet"):
        with pytest.raises(InputError, match=f"{path.name}: cannot be read as a shard of text"):
            list(text.iter_shards([path]))


def large_parquet(path, groups=10, **more):
    """Row groups of ROWS documents of 2 kB each, uncompressed."""
    count, rows = groups * ROWS, random.Random(1)
    columns = more | {"text": [rows.randbytes(1000).hex() for _ in range(count)]}
    table = pa.table({name: value if name == "text" else [value] * count for name, value in columns.items()})
    pq.write_table(table, path, row_group_size=ROWS, use_dictionary=False, compression="none")
    return path


class CountedFile(io.FileIO):
    """Counts the bytes that are read."""

    count = 0

    def readinto(self, buffer):
        done = super().readinto(buffer)
        self.count += done
        return done

    def read(self, size=-1):
        content = super().read(size)
        self.count += len(content)
        return content


def test_the_first_document_is_read_without_the_row_groups_after_it(tmp_path):
    path = large_parquet(tmp_path / "large.parquet")
    with CountedFile(path) as opened:
        next(text.rows(opened, "large.parquet", "large", 10**6))
        assert opened.count < path.stat().st_size / 2


def test_text_shards_are_read_a_row_group_at_a_time(tmp_path):
    path = large_parquet(tmp_path / "shard.parquet", document="a", held_out=False)
    before, shard = pa.total_allocated_bytes(), text.iter_shards([path])
    next(shard)
    assert pa.total_allocated_bytes() - before < path.stat().st_size / 2


def test_row_groups_before_the_first_row_are_not_read(tmp_path):
    path = large_parquet(tmp_path / "large.parquet")
    with CountedFile(path) as opened:
        rest = list(text.rows(opened, "large.parquet", "large", 10**6, first=9 * ROWS))
        assert [document.row for document in rest] == list(range(9 * ROWS, 10 * ROWS))
        assert opened.count < 1.5 * path.stat().st_size / 10
