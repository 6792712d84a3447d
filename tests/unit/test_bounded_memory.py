"""Files that would take gigabytes are read in bounded memory, or end in one sentence with file and row."""

import gzip
import itertools
import re
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.small import ROOT
from tests.unit.test_text import CountedFile
from twoscale.base import InputError
from twoscale.config import DataConfig
from twoscale.data import text_files
from twoscale.data.bounded_parquet import BATCH_BYTES, BoundedParquet, pages

# Prints the number of documents, and by how many bytes the peak of the process grew.
READ = """
import re, sys
from pathlib import Path
from twoscale.config import DataConfig
from twoscale.data import text_files
from twoscale.base import InputError
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
data = DataConfig(source=sys.argv[1], path=sys.argv[2], max_document_mb=20, piece_characters=None)
before, count = peak(), 0
try:
    for document in text_files.local_documents(data, Path(sys.argv[2] + ".cache")):
        count += 1
except InputError as error:
    print(error)
print(count, peak() - before)
"""
BIG = 60_000_000  # bytes of one document


def read(source, path):
    """Sentence or "", number of documents, and bytes of memory."""
    environment = {"PYTHONPATH": str(ROOT / "src"), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, "-c", READ, source, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    *sentence, counts = done.stdout.splitlines()
    return " ".join(sentence), *map(int, counts.split())


def test_a_dictionary_of_one_long_value_is_not_expanded(tmp_path):
    """256 rows of 16 MB in a file of less than a kilobyte."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), ["x" * 16_000_000])
    pq.write_table(pa.table({"text": values}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 2000
    sentence, count, memory = read("parquet", tmp_path / "a.parquet")
    assert (sentence, count) == ("", 256)
    assert memory < 8 * BATCH_BYTES


def test_a_document_above_the_limit_is_refused_with_file_and_row_before_it_is_decompressed(tmp_path):
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema({"text": pa.string()}), compression="zstd", use_dictionary=False) as writer:
        for text in ("short", "x" * BIG):
            writer.write_table(pa.table({"text": [text]}))
    sentence, count, memory = read("parquet", path)
    assert re.search(r"a\.parquet: found a page of 60 MB at row 1 in the column text, expected at most 20 MB", sentence)
    assert count == 1
    assert memory < BIG / 2


@pytest.mark.parametrize(("source", "ending"), [("txt", "txt"), ("txt", "txt.gz"), ("jsonl", "jsonl.gz")])
def test_a_line_above_the_limit_is_refused_with_file_and_line(tmp_path, source, ending):
    path = tmp_path / f"a.{ending}"
    with gzip.open(path, "wb", 1) if ending.endswith("gz") else path.open("wb") as file:
        file.write(b'{"text": "fine"}\n')
        for _ in range(10):
            file.write(b"x" * (BIG // 10))
    sentence, _, memory = read(source, path)
    assert f"a.{ending}, line 2: found more than 20000000 characters" in sentence
    assert memory < 3 * BIG


@pytest.mark.parametrize("size", [None, 10**6])
def test_a_document_that_is_not_cut_is_refused_above_the_limit(tmp_path, size):
    (tmp_path / "a.txt").write_bytes(b"a short line\n" * 100_000)
    data = DataConfig(source="txt", path=str(tmp_path), max_document_mb=1, piece_characters=size)
    with pytest.raises(InputError, match=r"a\.txt: found more than 1000000 characters.* raise data\.max_document_mb"):
        list(text_files.local_documents(data, tmp_path / "cache"))


def test_a_document_that_is_cut_may_be_longer_than_the_limit(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a short line\n" * 100_000)
    data = DataConfig(source="txt", path=str(tmp_path), max_document_mb=1, piece_characters=1000)
    assert sum(len(document.text) for document in text_files.local_documents(data, tmp_path / "cache")) == 1_300_000


OPTIONS = list(itertools.product(["1.0", "2.0"], ["zstd", "none"], [True, False], [True, False]))


@pytest.mark.parametrize(("version", "compression", "use_dictionary", "has_statistics"), OPTIONS)
def test_the_headers_of_pages_agree_with_the_footer(tmp_path, version, compression, use_dictionary, has_statistics):
    texts = [None if row % 7 == 0 else f"text {row % 50} " * (row % 40) for row in range(3000)]
    pq.write_table(
        pa.table({"text": texts}),
        tmp_path / "a.parquet",
        data_page_version=version,
        compression=compression,
        use_dictionary=use_dictionary,
        write_statistics=has_statistics,
        data_page_size=1000,
        write_batch_size=64,
        row_group_size=1000,
    )
    with (tmp_path / "a.parquet").open("rb") as opened:
        metadata = pq.read_metadata(tmp_path / "a.parquet")
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(0)
            found = list(pages(opened, chunk))
            assert sum(page.values for page in found) == 1000
            headers = chunk.total_uncompressed_size - sum(page.uncompressed for page in found)
            assert 10 * len(found) < headers < (2000 if has_statistics else 60) * len(found)
        rows = [
            text for _, batch in BoundedParquet(opened, "a").batches(["text"]) for text in batch["text"].to_pylist()
        ]
    assert rows == texts


def test_values_that_are_differences_are_as_long_as_all_pages_before(tmp_path):
    texts = ["x" * length for length in range(1, 2000, 7)]
    pq.write_table(
        pa.table({"text": texts}),
        tmp_path / "a.parquet",
        use_dictionary=False,
        column_encoding={"text": "DELTA_BYTE_ARRAY"},
    )
    with (tmp_path / "a.parquet").open("rb") as opened:
        (page,) = pages(opened, pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0))
    assert page.has_differences


def test_nulls_cost_next_to_no_time(tmp_path):
    """A column of nulls has hardly a byte however many there are, and no quota of characters ends it."""
    rows, seconds, documents = 500_000, {}, {}
    for name, value in (("nulls", None), ("empty", "")):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"text": pa.array([value] * rows + ["last"], pa.string())}), path)
        started = time.process_time()
        data = DataConfig(source="parquet", path=str(path))
        documents[name] = list(text_files.local_documents(data, tmp_path / "cache"))
        seconds[name] = time.process_time() - started
    assert [document.row for found in documents.values() for document in found] == [rows, rows]
    assert seconds["nulls"] < seconds["empty"] / 3


def test_the_first_rows_of_a_row_group_are_read_without_the_rest_of_it(tmp_path):
    path, texts = tmp_path / "a.parquet", [f"{row} " * 1000 for row in range(5000)]
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False, data_page_size=2**16)
    with CountedFile(path) as opened:
        _, batch = next(BoundedParquet(opened, "a").batches(["text"]))
        assert batch["text"][0].as_py() == texts[0]
        assert opened.count < path.stat().st_size / 4


def test_lists_of_text_are_refused_before_they_are_read(tmp_path):
    pq.write_table(pa.table({"text": [["a"]]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: found the type list<.*> in the column text, expected strings"):
        list(text_files.local_documents(DataConfig(source="parquet", path=str(tmp_path)), tmp_path / "cache"))
