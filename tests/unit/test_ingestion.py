"""Parts, quotas and text shards, from local files; test_hub covers the network."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twoscale.base import InputError, sha256
from twoscale.config import DataConfig, DownloadConfig, TextQuota
from twoscale.data import ingestion, text

TEXTS = [f"document {number} " + "word " * (number % 7) for number in range(200)]
FRACTION = 0.2
EVERYTHING = TextQuota("characters", None, 10**9)


def local(path, **changes):
    """The config of a local source; changes are not validated."""
    return DataConfig(source="parquet", path=str(path)).model_copy(update={"held_out_fraction": FRACTION} | changes)


def collection(folder, part_characters=700, measure=ingestion.count_characters):
    download = DownloadConfig(retries=0, delay=0.0, max_delay=0.0, timeout=1.0, part_characters=part_characters)
    return ingestion.Collection(folder, download, measure)


def prepare(source, shards, quota=EVERYTHING, fraction=FRACTION, **options):
    folder = shards[0].parent.parent / "parts"
    data = local(source, held_out_fraction=fraction)
    ingestion.prepare_text(data, quota, shards, collection(folder, **options))


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


def test_shards_hold_every_document_once_in_the_order_of_the_source(source, shards):
    prepare(source, shards)
    assert [row["text"] for row in rows_of(shards)] == TEXTS


def test_shards_hold_about_equally_many_characters(source, shards):
    prepare(source, shards)
    characters = [sum(len(row["text"]) for row in rows_of([shard])) for shard in shards]
    assert max(characters) - min(characters) <= 2 * max(map(len, TEXTS))


def test_the_size_of_parts_changes_no_byte(source, shards):
    contents = set()
    for part_characters in (1, 100, 10**9):
        prepare(source, shards, part_characters=part_characters)
        contents.add(tuple(shard.read_bytes() for shard in shards))
    assert len(contents) == 1


def test_the_held_out_column_is_the_function_of_the_text(source, shards):
    prepare(source, shards)
    assert all(row["held_out"] == text.is_held_out(row["text"], FRACTION) for row in rows_of(shards))


def test_the_pages_of_a_family_of_python_docs_are_on_one_side(shards, monkeypatch):
    names = [f"package{number % 20}.module{number}" for number in range(100)] + [f"topic {n}" for n in range(20)]
    pages = [text.Document(name, f"page of {name}", row) for row, name in enumerate(names)]
    monkeypatch.setattr(text, "python_docs", lambda: (page for page in pages))
    data = local("unread", source="python_docs", held_out_fraction=0.4)
    ingestion.prepare_text(data, EVERYTHING, shards, collection(shards[0].parent.parent / "parts"))
    sides = {(text.family(row["document"]), row["held_out"]) for row in rows_of(shards)}
    assert len(sides) == 21
    assert 1 < sum(held_out for _, held_out in sides) < 20


def test_copies_of_a_document_are_on_one_side(tmp_path, shards):
    prepare(write_parquet(tmp_path / "s.parquet", TEXTS * 2), shards)
    sides = {(row["text"], row["held_out"]) for row in rows_of(shards)}
    assert len(sides) == len(TEXTS)


def test_more_text_than_a_row_group_holds_is_written_whole(source, shards, monkeypatch):
    monkeypatch.setattr(ingestion, "ROW_GROUP_CHARACTERS", 300)
    prepare(source, shards)
    assert pq.ParquetFile(shards[0]).num_row_groups > 3
    assert [row["text"] for row in rows_of(shards)] == TEXTS


def test_more_shards_than_documents_leaves_empty_shards_that_can_be_read(tmp_path):
    few = write_parquet(tmp_path / "few.parquet", TEXTS[:10])
    shards = [tmp_path / f"text/shard_{number}.parquet" for number in range(20)]
    prepare(few, shards)
    assert [document for _, texts in text.iter_shards(shards) for document in texts] == TEXTS[:10]


@pytest.mark.parametrize(("fraction", "empty"), [(0.0, "held-out"), (1.0, "training")])
def test_a_side_without_documents_is_refused_and_no_shard_is_written(source, shards, fraction, empty):
    with pytest.raises(InputError, match=f"found no {empty} document among 200"):
        prepare(source, shards, fraction=fraction)
    assert not shards[0].parent.exists()


def test_a_source_that_fails_late_keeps_the_previous_shards(source, shards):
    prepare(source, shards)
    before = [shard.read_bytes() for shard in shards]
    content = bytearray((source / "b.parquet").read_bytes())
    content[20:200] = bytes(180)
    (source / "b.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"b\.parquet: cannot be read as a parquet file"):
        prepare(source, shards)
    assert [shard.read_bytes() for shard in shards] == before
    assert sorted(shards[0].parent.iterdir()) == shards


def test_parts_of_local_files_are_removed_and_never_used(source, shards):
    folder = shards[0].parent.parent / "parts"
    folder.mkdir()
    (folder / "part_00000.parquet").write_bytes(b"from an interrupted run")
    (folder / ".part_00001.parquet.host.7.tmp").write_bytes(b"from a killed run")
    (folder / ".manifest.json.host.7.tmp").write_bytes(b"from a killed run")
    (folder / ingestion.CACHE).mkdir()
    prepare(source, shards)
    assert [row["text"] for row in rows_of(shards)] == TEXTS
    assert not folder.exists()


def test_unknown_source_is_refused(tmp_path, shards):
    with pytest.raises(InputError, match=r"data\.source: found 'web', expected python_docs, txt, jsonl, parquet or"):
        ingestion.prepare_text(local(tmp_path, source="web"), EVERYTHING, shards, collection(tmp_path / "parts"))


@pytest.mark.parametrize("measure", [ingestion.count_characters, lambda texts: [len(t.split()) for t in texts]])
def test_whole_documents_are_taken_until_each_side_is_full_and_no_more(source, shards, measure):
    quota = TextQuota("characters", 300, 90)
    prepare(source, shards, quota, measure=measure)
    for held_out, limit in ((False, quota.training), (True, quota.held_out)):
        texts = side(shards, held_out)
        assert texts == [t for t in TEXTS if text.is_held_out(t, FRACTION) == held_out][: len(texts)]
        assert sum(measure(texts[:-1])) < limit <= sum(measure(texts))


def test_the_held_out_documents_are_the_same_for_every_training_quota(source, shards):
    held_out, training = [], []
    for characters in (50, 500, 3000):
        prepare(source, shards, TextQuota("characters", characters, 400))
        held_out.append(side(shards, held_out=True))
        training.append(side(shards, held_out=False))
    assert held_out[0] == held_out[1] == held_out[2]
    assert sum(map(len, held_out[0])) >= 400
    assert training[2][: len(training[1])] == training[1]  # a larger quota only appends


def test_a_source_smaller_than_the_quota_is_taken_whole_and_reported(source, shards, capfd):
    prepare(source, shards, TextQuota("characters", 10**6, 10))
    assert len(side(shards, held_out=False)) == sum(not text.is_held_out(t, FRACTION) for t in TEXTS)
    assert "the source ended after" in capfd.readouterr().err


def test_a_quota_of_documents_takes_exactly_as_many(source, shards):
    prepare(source, shards, TextQuota("characters", 7, 3), measure=lambda texts: [1] * len(texts))
    assert (len(side(shards, held_out=False)), len(side(shards, held_out=True))) == (7, 3)


def test_a_source_without_text_is_refused(tmp_path, shards):
    with pytest.raises(InputError, match=r"data\.source: parquet: found no document with text"):
        prepare(write_parquet(tmp_path / "s.parquet", ["", None]), shards)


def test_the_counts_of_a_side_without_documents_are_in_the_sentence(tmp_path, shards):
    with pytest.raises(InputError, match=r"found no held-out document among 2 \(9 characters\) with the fraction 0\.0"):
        prepare(write_parquet(tmp_path / "s.parquet", ["four", "fives"]), shards, fraction=0.0)


@pytest.mark.parametrize(("limit", "progress"), [(None, 6), (10, 6), (5, 5)])
def test_the_progress_is_the_training_text_up_to_its_quota(limit, progress):
    texts = [number for number in map(str, range(100)) if not text.is_held_out(number, FRACTION)][:2]
    excluded = next(number for number in map(str, range(100)) if text.is_held_out(number, FRACTION))
    tally = ingestion.Tally(TextQuota("characters", limit, 100), local("anywhere"))
    assert [tally.take("name", number, 3) for number in texts] == [False, False]
    assert tally.take("name", excluded, 50) is True
    assert (tally.progress, tally.documents, tally.full) == (progress, {False: 2, True: 1}, False)


def test_parts_have_the_characters_that_they_are_to_have_and_end_with_their_file():
    def files():
        for name, count in (("a", 8), ("b", 3)):
            yield name, None, (text.Document(f"n{row}", "x", row) for row in range(count))

    parts = list(ingestion._pending_parts(files(), 3))
    assert [(part.file, len(part.documents)) for part in parts] == [("a", 3), ("a", 3), ("a", 2), ("b", 3)]


def pending(first, count, file="a"):
    documents = [text.Document(f"n{row}", TEXTS[row], row) for row in range(first, first + count)]
    return ingestion.PendingPart(file, "v", documents)


@pytest.fixture
def folder(tmp_path):
    """Three parts: rows 0 to 9 and 12 to 19 of one file, rows 3 to 5 of the next."""
    parts = ingestion.Parts(tmp_path / "parts", {"source": "here"})
    for part in (pending(0, 10), pending(12, 8), pending(3, 3, "b")):
        parts.append(part, [1] * len(part.documents))
    return tmp_path / "parts"


def test_manifest_describes_each_part(folder):
    parts = json.loads((folder / ingestion.MANIFEST).read_text())["parts"]
    assert [(part["file"], part["first"], part["end"]) for part in parts] == [("a", 0, 10), ("a", 10, 20), ("b", 0, 6)]
    assert [part["documents"] for part in parts] == [10, 8, 3]
    assert [part["characters"] for part in parts] == [
        sum(map(len, TEXTS[0:10])),
        sum(map(len, TEXTS[12:20])),
        sum(map(len, TEXTS[3:6])),
    ]


def test_parts_with_the_same_identity_are_used(folder):
    parts = ingestion.Parts(folder, {"source": "here"})
    assert [name for name, _, _ in parts.documents()] == [f"n{row}" for row in (*range(10), *range(12, 20), 3, 4, 5)]


def test_a_folder_with_another_identity_loses_only_its_parts(folder):
    (folder / "notes.txt").write_text("mine")
    parts = ingestion.Parts(folder, {"source": "there"})
    assert parts.parts == []
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("damage", ["remove", "cut", "flip"])
def test_parts_are_used_up_to_the_first_that_is_missing_or_damaged(folder, damage):
    path = folder / "part_00001.parquet"
    content = path.read_bytes()
    match damage:
        case "remove":
            path.unlink()
        case "cut":
            path.write_bytes(content[:-1])
        case "flip":
            path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    parts = ingestion.Parts(folder, {"source": "here"})
    assert [part.name for part in parts.parts] == ["part_00000.parquet"]


def test_a_part_that_is_not_in_the_manifest_is_written_again(folder):
    saved = json.loads((folder / ingestion.MANIFEST).read_text())
    saved["parts"].pop()  # as after an interruption between part and manifest
    (folder / ingestion.MANIFEST).write_text(json.dumps(saved))
    parts = ingestion.Parts(folder, {"source": "here"})
    parts.append(pending(0, 2, "b"), [1, 1])
    assert len(list(ingestion.Parts(folder, {"source": "here"}).documents())) == 20


def test_a_manifest_that_is_not_json_is_refused_and_the_parts_are_kept(folder):
    (folder / ingestion.MANIFEST).write_text('{"identity":')
    with pytest.raises(InputError, match=r"manifest\.json: cannot be read as JSON"):
        ingestion.Parts(folder, {"source": "here"})
    assert len(list(folder.glob("part_*.parquet"))) == 3


@pytest.mark.parametrize(
    "change",
    [lambda saved: [], lambda saved: saved | {"commit": 3}, lambda saved: saved | {"parts": [{"name": "part_0"}]}],
    ids=["list", "commit", "part"],
)
def test_a_manifest_of_another_form_is_refused_and_the_parts_are_kept(folder, change):
    saved = json.loads((folder / ingestion.MANIFEST).read_text())
    (folder / ingestion.MANIFEST).write_text(json.dumps(change(saved)))
    with pytest.raises(InputError, match=r"manifest\.json: cannot be read as JSON .* remove the folder to start again"):
        ingestion.Parts(folder, {"source": "here"})
    assert (folder / "part_00000.parquet").exists()


def test_a_part_that_is_no_table_of_documents_is_refused(folder):
    pq.write_table(pa.table({"other": [1]}), folder / "part_00000.parquet")
    saved = json.loads((folder / ingestion.MANIFEST).read_text())
    saved["parts"][0]["sha256"] = sha256(folder / "part_00000.parquet")
    (folder / ingestion.MANIFEST).write_text(json.dumps(saved))
    with pytest.raises(InputError, match=r"part_00000\.parquet: cannot be read as a part \(found the columns other, "):
        list(ingestion.Parts(folder, {"source": "here"}).documents())
