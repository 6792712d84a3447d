"""Documents of Python's documentation and of a user's files, long documents in pieces, and text
shards.
"""

import gzip
import json
import random
import sysconfig
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twoscale import tables
from twoscale.base import InputError
from twoscale.config import DataConfig
from twoscale.data import text

NOVEL = "".join(
    f"Chapter {number}.\n\n"
    + f"It was evening {number}, and the lamp burned low. " * (number % 50)
    + "\n\n"
    for number in range(200)
)


@pytest.fixture
def read(tmp_path):
    """A function that returns names and texts of the documents under a path."""

    def documents(source, path, piece_characters=None):
        data = DataConfig(source=source, path=str(path), piece_characters=piece_characters)
        return [
            (document.name, document.text)
            for document in text.local_documents(data, tmp_path / "cache")
        ]

    return documents


def written(path, content):
    """A file with these bytes, lines of JSON or columns of parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        pq.write_table(pa.table(content), path, row_group_size=100)
        return path
    if isinstance(content, list):
        content = "".join(json.dumps(entry) + "\n" for entry in content).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# --- Python's documentation


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
            written(tmp_path / folder / name, content.encode())
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / folder))
        return [
            document for document in text.python_docs() if not document.name.startswith("topic ")
        ]

    return write


def test_docstrings_of_the_library_alone_are_sorted_by_module_and_in_source_order(fake_library):
    found = fake_library("here")
    assert [document.name for document in found] == ["alpha", "alpha.inner", "zeta"]
    assert found[1].text == (
        "alpha.inner.First\n\nA class.\n\n\nalpha.inner.First.method\n\nA method.\n\n\n"
        "alpha.inner.second\n\nA function."
    )
    assert found == fake_library("there/below")


def test_python_docs_of_the_running_python_begin_with_the_help_topics_and_name_no_path():
    found = list(islice(text.python_docs(), 120))
    names = [document.name for document in found]
    topics = [name for name in names if name.startswith("topic ")]
    assert names[: len(topics)] == topics == sorted(topics)
    assert "topic assert" in topics
    assert names[len(topics) :] == sorted(names[len(topics) :])
    assert all(document.text.strip() for document in found)
    assert not any(sysconfig.get_path("stdlib") in document.text for document in found)


# --- files


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("txt", ["a/1.txt.gz", "a/2.TXT", "b.txt"]),
        ("jsonl", ["a/1.jsonl.gz", "a/2.JSONL", "b.jsonl"]),
        ("parquet", ["a/1.parquet", "b.parquet"]),
    ],
)
def test_a_folder_is_read_in_the_order_of_paths_and_other_files_are_ignored(
    tmp_path, read, source, names
):
    contents = {"txt": b"text", "jsonl": [{"text": "text"}], "parquet": {"text": ["text"]}}
    for name in (*reversed(names), "notes.md", "c.csv"):
        written(tmp_path / "in" / name, contents[source] if name in names else b"other")
    assert [name.partition(":")[0] for name, _ in read(source, tmp_path / "in")] == names


def test_a_file_name_is_no_pattern_may_be_hidden_and_needs_no_ending(tmp_path, read):
    written(tmp_path / "mine [1]/a1.txt", b"another")
    for name in (".a[1]*?.txt", "novel"):
        assert read("txt", written(tmp_path / "mine [1]" / name, b"this one")) == [
            (name, "this one")
        ]


@pytest.mark.parametrize("source", text.ENDINGS)
def test_hidden_files_and_folders_below_a_folder_are_passed_over_and_counted(
    tmp_path, read, source, capfd
):
    folder = tmp_path / ".mine"  # the user names it
    content = {"txt": b"text", "jsonl": [{"text": "text"}], "parquet": {"text": ["text"]}}[source]
    written(folder / f"below/a.{source}", content)
    digest = text.digest_files(folder, source)
    assert len(read(source, folder)) == 1
    assert "passed over" not in capfd.readouterr().err
    hidden = f"._a.{source} .ipynb_checkpoints/a.{source} below/.git/refs/a.{source} .git/HEAD"
    for name in hidden.split():
        written(folder / name, b"no text")
    assert [name.partition(":")[0] for name, _ in read(source, folder)] == [f"below/a.{source}"]
    assert f"{folder}: hidden files passed over: 3\n" in capfd.readouterr().err
    assert text.digest_files(folder, source) == digest
    (folder / f"below/a.{source}").unlink()
    with pytest.raises(InputError, match=r"data\.path: found only hidden files at "):
        read(source, folder)


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Erste Zeile\n\nzweite 😀 ohne Ende", "Erste Zeile\n\nzweite 😀 ohne Ende"),
        ("\ufeffone\r\n\r\ntwo\r\n", "one\n\ntwo\n"),  # byte order mark and Windows' line ends
        ("\ufeffone\n\ufefftwo", "one\n\ufefftwo"),
        (NOVEL, NOVEL),
        ("", None),
        (" \n\n\t\n", None),
    ],
)
def test_a_text_file_is_one_document(tmp_path, read, ending, content, expected):
    file = written(tmp_path / f"a.{ending}", content.encode())
    assert read("txt", file) == ([] if expected is None else [(file.name, expected)])
    cache = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in cache) == 0  # `datasets` writes no copy of the text


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_json_lines_are_documents_named_by_id_or_line(tmp_path, read, ending):
    lines = [
        *(json.dumps({"text": f"t{row}"}) for row in range(5000)),  # more than a batch
        json.dumps({"text": "one", "id": "urn:1"}),
        "\r",
        json.dumps({"text": ""}),
        json.dumps({"text": "two\n\nlines\u2028", "n": [1], "id": None}),
    ]
    file = written(tmp_path / f"a.{ending}", "\n".join(lines).encode())
    expected = [(f"{file.name}:{row + 1}", f"t{row}") for row in range(5000)]
    assert read("jsonl", file) == [
        *expected,
        ("urn:1", "one"),
        (f"{file.name}:5004", "two\n\nlines\u2028"),
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"text": ["one", "two"], "id": ["urn:1", None], "url": ["u", "v"]},
            [("urn:1", "one"), ("x:1", "two")],
        ),
        ({"text": ["one"], "id": [7]}, [("7", "one")]),
        (
            {"text": [None, "", "kept", None, "Ünï\u2028 \0 😀"]},
            [("x:2", "kept"), ("x:4", "Ünï\u2028 \0 😀")],
        ),
        (
            {"text": [f"t{row}" for row in range(1000)]},
            [(f"x:{row}", f"t{row}") for row in range(1000)],
        ),
        ({"text": pa.nulls(3)}, []),
        *(
            ({"text": pa.array(["one", None, "one"]).cast(dtype)}, [("x:0", "one"), ("x:2", "one")])
            for dtype in (
                pa.large_string(),
                pa.string_view(),
                pa.dictionary(pa.int32(), pa.string()),
            )
        ),
    ],
)
def test_parquet_rows_are_documents_named_by_id_or_row(tmp_path, read, columns, expected):
    assert read("parquet", written(tmp_path / "x", columns)) == expected


def test_reading_from_a_row_on_gives_the_rest_and_reads_no_row_group_before_it(tmp_path):
    path = tmp_path / "x.parquet"
    draw = random.Random(1)
    values = [None if row % 5 == 0 else draw.randbytes(5000).hex() for row in range(400)]
    pq.write_table(
        pa.table({"text": values}), path, row_group_size=7, compression="none", use_dictionary=False
    )
    everything = list(text.rows(path, "x", "x"))
    for first in (0, 6, 7, 20, 398, 400):
        assert list(text.rows(path, "x", "x", first)) == [
            found for found in everything if found.row >= first
        ]
    with path.open("r+b") as file:  # the row groups of the first rows are damaged, and not read
        file.seek(4)
        file.write(bytes(path.stat().st_size // 2))
    assert len(list(text.rows(path, "x", "x", 380))) == 16
    with pytest.raises((OSError, ValueError)):
        list(text.rows(path, "x", "x"))


BROKEN_GZIP = gzip.compress(random.Random(0).randbytes(1000).hex().encode())[:-30]
WRONG_FILES = {
    "byte": ("a.txt", b"x" * 100 + b"\xff", "a byte that is not UTF-8"),
    "late byte": ("a.txt", (b"x" * 10**6 + b"\n") * 12 + b"\xe4\xb8", "a byte that is not UTF-8"),
    "cut gzip": ("a.txt.gz", BROKEN_GZIP, "cannot be read"),
    "null": ("a.jsonl", b'\n{"text": null}', "line 2: found no text"),
    "number": ("a.jsonl", b'{"text": 3}', "line 1: found int as text"),
    "no json": (
        "a.jsonl",
        b'{"text": "fine"}\n\n{"text": "x"\n',
        "line 3: found Expecting ',' delimiter",
    ),
    "surrogate": ("a.jsonl", b'{"text": "\\ud800"}', "line 1: found 'utf-8' codec can't encode"),
    "no column": ("a.parquet", {"content": ["one"], "id": ["1"]}, "found the columns content, id"),
    "binary": (
        "a.parquet",
        {"text": pa.array([b"one"], pa.binary())},
        "found bytes in the column text",
    ),
    "not UTF-8": (
        "a.parquet",
        {"text": pa.StringArray.from_buffers(1, *pa.array([b"\xff"]).buffers()[1:])},
        "a byte that is not UTF-8",
    ),
    "empty": ("a.parquet", b"", "cannot be read"),
}


@pytest.mark.parametrize(("name", "content", "found"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_file_that_cannot_be_read_is_one_sentence_with_its_name(
    tmp_path, read, name, content, found
):
    file = tmp_path / name
    file.write_bytes(content) if isinstance(content, bytes) else written(file, content)
    with pytest.raises(InputError) as caught:
        read(name.split(".")[1], file)
    assert str(file) in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("source", "name", "found"),
    [
        ("parquet", "a.txt", "data.source: found parquet for .*, expected txt"),
        ("txt", "a.jsonl.gz", "data.source: found txt for .*, expected jsonl"),
        ("jsonl", "a.parquet", "data.source: found jsonl for .*, expected parquet"),
        ("txt", "", r"data.path: found no file at .*, expected \*.txt or \*.txt.gz"),
        ("parquet", "gone", "data.path: found nothing at .*gone, expected"),
    ],
)
def test_a_path_without_files_of_the_source_is_refused(tmp_path, read, source, name, found):
    for other in ("a.txt", "a.jsonl.gz", "a.parquet"):
        written(tmp_path / "in" / other, b"text")
    (tmp_path / "in/a.txt").rename(tmp_path / "a.txt")
    path = tmp_path if name == "a.txt" else tmp_path / "in"
    with pytest.raises(InputError, match=found):
        read(source, path / name)


# --- long documents


def test_pieces_are_the_document_and_do_not_depend_on_how_it_is_read():
    draw = random.Random(0)
    for _ in range(500):
        document, size = (
            "".join(draw.choices("abcd \n.é", k=draw.randrange(400))),
            draw.randint(1, 40),
        )
        cuts = sorted(draw.choices(range(len(document) + 1), k=draw.randrange(7)))
        parts = [
            document[begin:end]
            for begin, end in zip([0, *cuts], [*cuts, len(document)], strict=True)
        ]
        found = list(text.pieces(parts, size))
        assert "".join(piece for piece, _ in found) == document
        assert found == list(text.pieces([document], size))
        if len(document) > text.LONG * size:
            assert all(len(piece) <= size and not is_whole for piece, is_whole in found)
            assert all(len(piece) > size // 2 for piece, _ in found[:-1])
        else:
            assert found == ([(document, True)] if document else [])


@pytest.mark.parametrize("boundary", text.BOUNDARIES)
def test_pieces_end_at_the_best_boundary(boundary):
    worse = text.BOUNDARIES[text.BOUNDARIES.index(boundary) + 1 :]
    unit = "x" * 30 + boundary + "".join(f"yyy{other}" for other in worse) + "z"
    found = [piece for piece, _ in text.pieces([unit * 50], 60)]
    assert all(piece.endswith(boundary) for piece in found[:-1])


@pytest.mark.parametrize("source", text.ENDINGS)
def test_every_source_gives_the_same_pieces_of_a_long_document(tmp_path, read, source):
    contents = {"txt": NOVEL.encode(), "jsonl": [{"text": NOVEL}], "parquet": {"text": [NOVEL]}}
    found = read(source, written(tmp_path / f"novel.{source}", contents[source]), 2000)
    assert [piece for _, piece in found] == [piece for piece, _ in text.pieces([NOVEL], 2000)]
    assert len({name for name, _ in found}) == len(found) > 50


# --- held-out documents and text shards


def test_held_out_documents_are_a_fraction_and_a_larger_fraction_only_adds_some():
    keys = [f"text {number}" for number in range(5000)]
    held_out = [
        {key for key in keys if text.is_held_out(key, fraction)}
        for fraction in (0.0, 0.1, 0.3, 1.0)
    ]
    assert len(held_out[1]) / 5000 == pytest.approx(0.1, abs=0.02)
    assert held_out[0] == set() < held_out[1] < held_out[2] < held_out[3] == set(keys)


def test_pages_of_python_docs_are_split_by_family_and_other_documents_by_their_text():
    keys = {
        name: text.split_key("python_docs", name, "text")
        for name in ("json", "json.tool", "jsonx", "topic json")
    }
    assert keys["json"] == keys["json.tool"]
    assert len(set(keys.values())) == 3
    assert text.split_key("python_docs", "topic if", "a") == text.split_key(
        "python_docs", "topic class", "b"
    )
    assert text.split_key("parquet", "json.tool", "a text") == "a text"


def test_shards_are_read_in_order_and_training_texts_are_those_not_held_out(tmp_path):
    shards = []
    for number, rows in enumerate([[(True, "a"), (False, "b")], [], [(False, "c"), (True, "d")]]):
        shards.append(tmp_path / f"shard_{number}.parquet")
        with tables.writing("text", shards[-1]) as append:
            held_out, texts = zip(*rows, strict=True) if rows else ((), ())
            append({"document": [""] * len(rows), "held_out": held_out, "text": texts})
    assert [t for _, texts in text.iter_shards(shards) for t in texts] == ["a", "b", "c", "d"]
    assert list(text.training_texts(shards)) == ["b", "c"]
