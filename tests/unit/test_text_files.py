"""Documents of a user's files: plain text, JSON Lines, parquet; long documents in pieces; the job as a process."""

import gzip
import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twoscale.base import InputError
from twoscale.config import DataConfig, DownloadConfig, TextQuota, plain
from twoscale.data import ingestion, text, text_files
from twoscale.data.source_files import ENDINGS

PROJECT = Path(__file__).parents[2]
NOVEL = "".join(
    f"Chapter {number}.\n\n" + f"It was evening {number}, and the lamp burned low. " * (number % 50) + "\n\n"
    for number in range(200)
)


@pytest.fixture
def read(tmp_path):
    """A function that returns names and texts of the documents under a path."""

    def documents(source, path, piece_characters=None):
        data = DataConfig(source=source, path=str(path), piece_characters=piece_characters)
        return [(document.name, document.text) for document in text_files.local_documents(data, tmp_path / "cache")]

    return documents


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def json_lines(*entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_a_text_file_is_one_document(tmp_path, read, ending):
    file = written(tmp_path / f"a.{ending}", "Erste Zeile\n\nzweite 😀 ohne Ende".encode())
    assert read("txt", file) == [(f"a.{ending}", "Erste Zeile\n\nzweite 😀 ohne Ende")]


def test_a_text_file_is_row_0_of_itself(tmp_path):
    file = written(tmp_path / "a.txt", b"one document")
    data = DataConfig(source="txt", path=str(file))
    assert [document.row for document in text_files.local_documents(data, tmp_path / "cache")] == [0]


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_byte_order_mark_and_windows_line_ends_are_normalized(tmp_path, read, ending):
    file = written(tmp_path / f"a.{ending}", b"\xef\xbb\xbfone\r\n\r\ntwo\r\n")
    assert read("txt", file) == [(f"a.{ending}", "one\n\ntwo\n")]


def test_a_folder_of_text_is_read_in_the_order_of_paths_and_other_files_are_ignored(tmp_path, read):
    for name in ("b.txt", "a/2.TXT", "a/1.txt.gz", "notes.md", "x.jsonl", "data.parquet"):
        written(tmp_path / "in" / name, name.encode())
    assert [name for name, _ in read("txt", tmp_path / "in")] == ["a/1.txt.gz", "a/2.TXT", "b.txt"]


def test_a_file_name_is_no_pattern_and_may_be_hidden(tmp_path, read):
    written(tmp_path / "mine [1]/a1.txt", b"another")
    file = written(tmp_path / "mine [1]/.a[1]*?.txt", b"this one")
    assert read("txt", file) == [(file.name, "this one")]


def test_a_single_file_needs_no_ending(tmp_path, read):
    assert read("txt", written(tmp_path / "novel", b"text")) == [("novel", "text")]


@pytest.mark.parametrize("content", [b"", b" \n\n\t\n"])
def test_a_text_file_without_text_has_no_document(tmp_path, read, content):
    assert read("txt", written(tmp_path / "a.txt", content)) == []


@pytest.mark.parametrize("before", [0, 7, text_files.CHUNK - 1, text_files.CHUNK, 3 * text_files.CHUNK + 5])
@pytest.mark.parametrize("invalid", [b"\xff", b"\xc3(", b"\xe4\xb8"])  # the last one is a truncated character
def test_bytes_that_are_not_utf8_are_refused_with_file_and_offset(tmp_path, read, before, invalid):
    file = written(tmp_path / "a.txt", b"x" * before + invalid)
    with pytest.raises(InputError, match=rf"a\.txt: found a byte that is not UTF-8 at offset {before}, expected"):
        read("txt", file)


def test_the_offset_in_a_compressed_file_is_that_of_its_text(tmp_path, read):
    file = written(tmp_path / "a.txt.gz", "ä".encode() * 100 + b"\xff")
    with pytest.raises(InputError, match=r"not UTF-8 at offset 200, expected"):
        read("txt", file)


def test_a_character_nul_is_refused_with_its_place(tmp_path, read):
    file = written(tmp_path / "a.txt", b"one\r\ntwo\0")
    with pytest.raises(InputError, match=r"a\.txt: found the character NUL after 7 characters, expected text in UTF-8"):
        read("txt", file)


def test_a_compressed_file_that_is_cut_or_not_compressed_is_refused(tmp_path, read):
    whole = gzip.compress(os.urandom(1000).hex().encode())
    for content in (whole[:-30], b"plain"):
        file = tmp_path / "a.txt.gz"
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.txt\.gz: cannot be read as text"):
            read("txt", file)


def test_the_cache_of_datasets_holds_no_text(tmp_path, read):
    for ending in ("txt", "txt.gz"):
        read("txt", written(tmp_path / f"novel.{ending}", NOVEL.encode()))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) == 0


@pytest.mark.parametrize("chunk", [3, 2**20])
@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (["x" * 10, "ä" * 10, "x" * 10], None),
        (["x" * 11], 1),
        (["x" * 10, "", "x" * 11, "y"], 3),
        (["x" * 4, "x" * 10, "ä" * 11], 3),
    ],
)
def test_a_line_of_more_characters_than_allowed_is_refused_with_its_number(tmp_path, monkeypatch, chunk, lines, wrong):
    monkeypatch.setattr(text_files, "CHUNK", chunk)
    for end in ("", "\n"):
        file = written(tmp_path / "a.txt", ("\n".join(lines) + end).encode())
        if wrong is None:
            text_files.check_lines(file, 10)
        else:
            with pytest.raises(InputError, match=rf"a\.txt, line {wrong}: found more than 10 characters"):
                text_files.check_lines(file, 10)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_json_lines_are_documents_named_by_id_or_line(tmp_path, read, ending):
    entries = [
        {"text": "one", "id": "urn:1"},
        {"text": "two\n\nlines\u2028"},
        {"text": ""},
        {"text": "three", "n": [1]},
    ]
    content = json_lines(*entries[:2]) + b"\r\n\n" + json_lines(*entries[2:])
    file = written(tmp_path / f"a.{ending}", content)
    name = file.name
    assert read("jsonl", file) == [("urn:1", "one"), (f"{name}:2", "two\n\nlines\u2028"), (f"{name}:6", "three")]


def test_line_numbers_go_on_across_batches(tmp_path, read):
    count = 5000
    file = written(tmp_path / "a.jsonl", json_lines(*({"text": f"t{row}"} for row in range(count))))
    assert read("jsonl", file) == [(f"a.jsonl:{row + 1}", f"t{row}") for row in range(count)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"content": "x"}', "found the fields content; expected a field named text"),
        ("{}", "found the fields none; expected a field named text"),
        ('{"text": null}', "found null in the field text, expected a string"),
        ('{"text": 3}', "found a value of type int in the field text, expected a string"),
        ('["text"]', "found a value of type list, expected an object with the field text"),
        ('{"text": "x"', r"cannot be read as JSON \(Expecting ',' delimiter at character 14\), expected an object"),
        ('{"text": "a\tb"}', r"cannot be read as JSON \(Invalid control character at character 12\), expected"),
        ('{"text": "\\ud800"}', "found an unpaired surrogate in the field text"),
    ],
)
def test_a_line_without_text_is_refused_with_file_and_line(tmp_path, read, line, message):
    file = written(tmp_path / "a.jsonl", b'{"text": "fine"}\n\n' + line.encode() + b"\n")
    with pytest.raises(InputError, match=rf"a\.jsonl, line 3: {message}"):
        read("jsonl", file)


@pytest.mark.parametrize(
    ("source", "name", "other"),
    [("parquet", "a.txt", "txt"), ("txt", "a.jsonl.gz", "jsonl"), ("jsonl", "a.parquet", "parquet")],
)
def test_a_file_of_another_source_is_refused_with_the_source_that_reads_it(tmp_path, read, source, name, other):
    with pytest.raises(InputError, match=rf"data\.source: found {source} for .*, expected {other}"):
        read(source, written(tmp_path / name, b"text"))


@pytest.mark.parametrize("source", ENDINGS)
def test_a_folder_without_files_of_the_source_is_refused(tmp_path, read, source):
    written(tmp_path / "a.doc", b"text")
    with pytest.raises(InputError, match=rf"data\.path: found no \*\.{source}.* file under .*, expected at least one"):
        read(source, tmp_path)


def test_pieces_are_the_document_and_do_not_depend_on_how_it_is_read():
    draw = random.Random(0)
    for _ in range(500):
        document, size = "".join(draw.choices("abcd \n.é", k=draw.randrange(400))), draw.randint(1, 40)
        cuts = sorted(draw.choices(range(len(document) + 1), k=draw.randrange(7)))
        parts = [document[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(document)], strict=True)]
        found = list(text_files.pieces(parts, size))
        assert "".join(piece for piece, _ in found) == document
        assert found == list(text_files.pieces([document], size))
        if len(document) > text_files.LONG * size:
            assert all(len(piece) <= size and not is_whole for piece, is_whole in found)
            assert all(len(piece) > size // 2 for piece, _ in found[:-1])
        else:
            assert found == ([(document, True)] if document else [])


@pytest.mark.parametrize(("length", "number"), [(100, 1), (101, 11)])
def test_a_document_of_more_than_ten_pieces_is_cut(length, number):
    assert len(list(text_files.pieces(["x" * length], 10))) == number


@pytest.mark.parametrize("boundary", text_files.BOUNDARIES)
def test_pieces_end_at_the_best_boundary(boundary):
    worse = text_files.BOUNDARIES[text_files.BOUNDARIES.index(boundary) + 1 :]
    unit = "x" * 30 + boundary + "".join(f"yyy{other}" for other in worse) + "z"
    found = [piece for piece, _ in text_files.pieces([unit * 50], 60)]
    assert all(piece.endswith(boundary) for piece in found[:-1])


def test_a_document_without_any_boundary_is_cut_too():
    assert [len(piece) for piece, _ in text_files.pieces(["x" * 1000], 64)] == [64] * 15 + [40]


def test_no_size_leaves_documents_whole(tmp_path, read):
    assert read("txt", written(tmp_path / "a.txt", NOVEL.encode()), None) == [("a.txt", NOVEL)]


@pytest.mark.parametrize("source", ENDINGS)
def test_every_source_gives_the_same_pieces_of_a_long_document(tmp_path, read, source):
    file = tmp_path / f"novel.{source}"
    match source:
        case "txt":
            written(file, NOVEL.encode())
        case "jsonl":
            written(file, json_lines({"text": NOVEL}))
        case "parquet":
            pq.write_table(pa.table({"text": [NOVEL]}), file)
    found = read(source, file, 2000)
    assert [piece for _, piece in found] == [piece for piece, _ in text_files.pieces([NOVEL], 2000)]
    assert len({name for name, _ in found}) == len(found) > 50


class Job:
    """prepare_text on a path; `run` is the entry script in a process, whose home is an empty folder."""

    def __init__(self, root: Path, **data) -> None:
        self.root, self.shards = root, [root / f"results/mine/data/text/shard_{number}.parquet" for number in range(2)]
        self.data = DataConfig(**({"held_out_fraction": 0.2} | data))
        self.parts = root / "results/mine/data/parts"
        self.download = DownloadConfig(part_characters=5000)

    def prepare(self) -> None:
        """In this process."""
        quota = TextQuota("characters", None, 10**9)
        ingestion.prepare_text(self.data, quota, self.shards, ingestion.Collection(self.parts, self.download))

    def run(self, training: int | None = None, held_out: int = 2000) -> subprocess.CompletedProcess:
        quota = TextQuota("characters", training, held_out)
        command = [sys.executable, PROJECT / "scripts/prepare_text.py", "--text", *self.shards, "--parts", self.parts]
        command += ["--config", json.dumps({"data": plain(self.data), "quota": asdict(quota)})]
        command += ["--download", json.dumps({"download": plain(self.download)})]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_"))}
        # the environment of the rule has no torch, which `datasets` would import
        variables = {"HOME": str(self.root / "home"), "PYTHONPATH": str(PROJECT / "src"), "USE_TORCH": "0"}
        return subprocess.run(
            command, env=clean | variables, cwd=self.root, capture_output=True, text=True, timeout=120, check=False
        )

    def rows(self) -> list[dict]:
        return [row for shard in self.shards for row in pq.read_table(shard).to_pylist()]

    def files(self) -> set[str]:
        return {path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()}


SHARDS = {f"results/mine/data/text/shard_{number}.parquet" for number in range(2)}


def test_a_novel_is_split_by_content_and_nothing_but_the_text_remains(tmp_path):
    written(tmp_path / "novel.txt", NOVEL.encode())
    job = Job(tmp_path, source="txt", path="novel.txt", piece_characters=2000)
    done = job.run()
    assert done.returncode == 0, done.stderr
    rows = job.rows()
    assert all(row["held_out"] == text.is_held_out(row["text"], 0.2) for row in rows)
    assert {row["held_out"] for row in rows} == {True, False}
    pieces = [piece for piece, _ in text_files.pieces([NOVEL], 2000)]
    assert [row["text"] for row in rows] == [piece for piece in pieces if piece in {row["text"] for row in rows}]
    assert job.files() == SHARDS | {"novel.txt"}  # no cache, neither in results/ nor in the home


def test_the_side_of_a_document_does_not_depend_on_names_and_order_of_files(tmp_path):
    sides = []
    for order in (1, -1):
        for number in range(30):
            written(tmp_path / f"{order}/in/{100 + order * number}.txt", f"story {number} ".encode() * 20)
        job = Job(tmp_path / str(order), source="txt", path=str(tmp_path / f"{order}/in"))
        job.prepare()
        sides.append({row["text"]: row["held_out"] for row in job.rows()})
    assert sides[0] == sides[1]
    assert len(sides[0]) == 30


@pytest.mark.parametrize("source", ["txt", "jsonl"])
def test_the_process_ends_well_where_the_quota_stops_reading(tmp_path, source):
    content = NOVEL.encode() if source == "txt" else json_lines(*({"text": f"{n} {NOVEL[:900]}"} for n in range(500)))
    for name in ("a", "b"):
        written(tmp_path / f"in/{name}.{source}", content)
    job = Job(tmp_path, source=source, path="in", piece_characters=500)
    done = job.run(5000, 500)
    assert done.returncode == 0, done.stderr
    assert sum(len(row["text"]) for row in job.rows()) < 20_000


def test_a_file_that_cannot_be_read_is_one_sentence_and_leaves_nothing(tmp_path):
    written(tmp_path / "in/a.txt", b"fine\n" * 2000)
    written(tmp_path / "in/b.txt", b"caf\xe9\n")
    job = Job(tmp_path, source="txt", path="in")
    done = job.run()
    assert done.returncode == 1
    assert "error: in/b.txt: found a byte that is not UTF-8 at offset 3," in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert job.files() == {"in/a.txt", "in/b.txt"}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"a.txt": b" \n", "b.txt": b""}, r"data\.source: txt: found no document with text; every text is empty"),
        (
            {"a.txt": b"a short story"},
            r"found no (training|held-out) document among 1 \(13 characters\) with the fraction 0\.2",
        ),
    ],
)
def test_text_without_documents_for_both_sides_names_the_cause_and_leaves_nothing(tmp_path, files, sentence):
    for name, content in files.items():
        written(tmp_path / "in" / name, content)
    job = Job(tmp_path, source="txt", path=str(tmp_path / "in"))
    with pytest.raises(InputError, match=sentence):
        job.prepare()
    assert job.files() == {f"in/{name}" for name in files}
