"""Parts, quotas and text shards, from local files; test_hub covers the network."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twoscale.base import InputError
from twoscale.config import DataConfig, DownloadConfig, TextQuota
from twoscale.data import ingestion, text
from twoscale.data.text import Document

TEXTS = [f"document {number} " + "word " * (number % 7) for number in range(200)]
FRACTION = 0.2
EVERYTHING = TextQuota("characters", None, 10**9)


def prepare(source, shards, quota=EVERYTHING, fraction=FRACTION, part_characters=700, measure=None):
    # not validated, so that a fraction may be 0 or 1
    data = DataConfig(source="parquet", path=str(source)).model_copy(
        update={"held_out_fraction": fraction}
    )
    download = DownloadConfig(part_characters=part_characters)
    ingestion.prepare_text(
        data,
        quota,
        shards,
        shards[0].parent.parent / "parts",
        download,
        measure or ingestion.count_characters,
    )


def rows_of(shards):
    return [row for shard in shards for row in pq.read_table(shard).to_pylist()]


def side(shards, held_out):
    return [row["text"] for row in rows_of(shards) if row["held_out"] == held_out]


def write_parquet(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": texts}), path)
    return path


@pytest.fixture
def source(tmp_path):
    """A folder of two files."""
    write_parquet(tmp_path / "source/a.parquet", TEXTS[:120])
    write_parquet(tmp_path / "source/b.parquet", TEXTS[120:])
    return tmp_path / "source"


@pytest.fixture
def shards(tmp_path):
    return [tmp_path / f"text/shard_{number}.parquet" for number in range(3)]


def test_shards_hold_every_document_once_in_order_and_about_equally_many_characters(source, shards):
    prepare(source, shards)
    rows = rows_of(shards)
    assert [row["text"] for row in rows] == TEXTS
    assert all(row["held_out"] == text.is_held_out(row["text"], FRACTION) for row in rows)
    characters = [sum(len(row["text"]) for row in rows_of([shard])) for shard in shards]
    assert max(characters) - min(characters) <= 2 * max(map(len, TEXTS))


def test_the_size_of_parts_changes_no_byte_and_that_of_row_groups_no_row(
    source, shards, monkeypatch
):
    contents = set()
    for part_characters in (60, 1000, 10**9):
        prepare(source, shards, part_characters=part_characters)
        contents.add(tuple(shard.read_bytes() for shard in shards))
    assert len(contents) == 1
    monkeypatch.setattr(ingestion, "ROW_GROUP_CHARACTERS", 300)
    prepare(source, shards)
    assert pq.ParquetFile(shards[0]).num_row_groups > 3
    assert [row["text"] for row in rows_of(shards)] == TEXTS


def test_a_row_group_of_a_shard_is_filled_before_it_is_written(source, shards, monkeypatch):
    monkeypatch.setattr(ingestion, "ROW_GROUP_CHARACTERS", 300)
    prepare(source, shards)
    for shard in shards:
        file = pq.ParquetFile(shard)
        groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
        characters = [sum(map(len, group["text"].to_pylist())) for group in groups]
        assert len(characters) > 3
        assert all(300 <= count < 300 + max(map(len, TEXTS)) for count in characters[:-1])


def test_a_part_is_filled_before_it_is_written(tmp_path):
    documents = [Document(f"n{row}", text, row) for row, text in enumerate(TEXTS)]
    files = iter([(name, (document for document in documents)) for name in "ab"])
    groups = list(ingestion._groups(files, 300))
    for name in "ab":
        sizes = [sum(len(d.text) for d in group) for file, group in groups if file == name]
        assert all(300 <= size < 300 + max(map(len, TEXTS)) for size in sizes[:-1])
        assert sum(sizes) == sum(map(len, TEXTS))


@pytest.mark.parametrize(
    ("texts", "fraction", "found"),
    [
        (
            TEXTS,
            0.0,
            r"found no held-out document among 200 of data.source: parquet with the fraction 0\.0",
        ),
        (TEXTS, 1.0, "found no training document among 200 "),
        (["", None], 0.5, "found no training document among 0 "),
    ],
)
def test_a_side_without_documents_is_refused_and_no_shard_is_written(
    tmp_path, shards, texts, fraction, found
):
    with pytest.raises(InputError, match=f"data.held_out_fraction: .*{found}"):
        prepare(write_parquet(tmp_path / "s.parquet", texts), shards, fraction=fraction)
    assert not shards[0].parent.exists()


def test_a_source_that_fails_late_keeps_the_previous_shards(source, shards):
    prepare(source, shards)
    before = [shard.read_bytes() for shard in shards]
    content = bytearray((source / "b.parquet").read_bytes())
    content[20:200] = bytes(180)
    (source / "b.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"b\.parquet: cannot be read"):
        prepare(source, shards)
    assert [shard.read_bytes() for shard in shards] == before
    assert sorted(shards[0].parent.iterdir()) == shards
    assert not (shards[0].parent.parent / "parts").exists()


def test_parts_of_local_files_are_removed_and_never_used(source, shards):
    folder = shards[0].parent.parent / "parts"
    (folder / ingestion.CACHE).mkdir(parents=True)
    identity = {"source": "parquet", "path": str(source), "unit": "characters"}
    killed = ingestion.Parts(folder, identity)
    killed.append("parquet", [Document("a.parquet:0", "an earlier text", 0)], [15])
    for name in (
        ".part_00001.parquet.host.7.tmp",
        ".manifest.json.host.7.tmp",
    ):
        (folder / name).write_bytes(b"from a killed run")
    prepare(source, shards)
    assert [row["text"] for row in rows_of(shards)] == TEXTS
    assert not folder.exists()


# --- quotas


@pytest.mark.parametrize(
    "measure", [ingestion.count_characters, lambda texts: [len(t.split()) for t in texts]]
)
def test_whole_documents_are_taken_until_each_side_is_full_and_no_more(source, shards, measure):
    quota = TextQuota("characters", 300, 90)
    prepare(source, shards, quota, measure=measure)
    for held_out, limit in (
        (False, quota.training),
        (True, quota.held_out),
    ):  # each whatever the other's limit is
        texts = side(shards, held_out)
        assert (
            texts == [t for t in TEXTS if text.is_held_out(t, FRACTION) == held_out][: len(texts)]
        )
        assert sum(measure(texts[:-1])) < limit <= sum(measure(texts))


def test_a_source_smaller_than_the_quota_is_taken_whole_and_reported(source, shards, capfd):
    prepare(source, shards, TextQuota("characters", 10**6, 10))
    assert len(side(shards, held_out=False)) == sum(
        not text.is_held_out(t, FRACTION) for t in TEXTS
    )
    assert "the source ended after" in capfd.readouterr().err


# --- parts


def append(parts, file, first, count):
    documents = [Document(f"n{row}", TEXTS[row], row) for row in range(first, first + count)]
    parts.append(file, documents, [1] * count)


@pytest.fixture
def folder(tmp_path):
    """Three parts: rows 0 to 9 and 12 to 19 of one file, rows 3 to 5 of the next."""
    parts = ingestion.Parts(tmp_path / "parts", {"source": "here"})
    append(parts, "a", 0, 10)
    append(parts, "a", 12, 8)
    append(parts, "b", 3, 3)
    return tmp_path / "parts"


def test_the_manifest_describes_each_part_and_parts_with_the_same_identity_are_used(folder):
    parts = json.loads((folder / ingestion.MANIFEST).read_text())["parts"]
    assert [(part["file"], part["first"], part["end"]) for part in parts] == [
        ("a", 0, 10),
        ("a", 10, 20),
        ("b", 0, 6),
    ]
    names = [name for name, _, _ in ingestion.Parts(folder, {"source": "here"}).documents()]
    assert names == [f"n{row}" for row in (*range(10), *range(12, 20), 3, 4, 5)]


def test_a_folder_with_another_identity_loses_only_its_parts(folder):
    (folder / "notes.txt").write_text("mine")
    assert ingestion.Parts(folder, {"source": "there"}).parts == []
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "damage", [None, lambda content: content[:-1], lambda content: b"x" + content[1:]]
)
def test_parts_are_used_up_to_the_first_that_is_missing_or_damaged(folder, damage):
    path = folder / "part_00001.parquet"
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))
    parts = ingestion.Parts(folder, {"source": "here"})
    assert [part.name for part in parts.parts] == ["part_00000.parquet"]


@pytest.mark.parametrize(
    "content", ['{"identity":', "[]", '{"identity": {}, "commit": 3, "parts": []}']
)
def test_a_manifest_of_another_form_is_refused_and_the_parts_are_kept(folder, content):
    (folder / ingestion.MANIFEST).write_text(content)
    with pytest.raises(
        InputError, match=r"manifest\.json: cannot be read .* remove the folder to start again"
    ):
        ingestion.Parts(folder, {"source": "here"})
    assert len(list(folder.glob("part_*.parquet"))) == 3
