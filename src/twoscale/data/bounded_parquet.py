"""Parquet files in bounded memory, whatever their content: batches of rows by bytes, and a limit on a page.

A page is what a parquet reader decompresses at once. Its header, which is read here before, has its decompressed size;
the sizes in the footer need not be true. No value is longer than its page, unless values are stored as differences.
The format: https://github.com/apache/parquet-format, struct PageHeader, in Thrift's compact protocol.
"""

import io
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from twoscale.base import InputError

ROWS = 256  # most rows of a batch
BATCH_BYTES = 2**26  # of a batch of several rows
BUFFER = 2**20  # bytes of a column that are read at a time

# Fields of a PageHeader, and of the headers of both versions of a data page in it.
UNCOMPRESSED, COMPRESSED, DATA_PAGE, DATA_PAGE_V2 = 2, 3, 5, 8
NUM_VALUES, ENCODING, ENCODING_V2 = 1, 2, 4
DELTA_BYTE_ARRAY = 7
MAX_DEPTH = 4  # of structs in a PageHeader


class Page(NamedTuple):
    """A page of a column: the number of its values (0 for a dictionary), its bytes, and whether it has differences."""

    values: int
    uncompressed: int
    has_differences: bool


class BoundedParquet:
    """A parquet file that is read in batches.

    Files are opened with `pre_buffer=False`, because pre-buffering fetches a whole file and keeps it in memory.

    Args:
        opened: The file.
        what: Its name in error messages.
        max_bytes: Largest page, decompressed; None for files that this project wrote.

    Raises:
        ValueError, OSError, pa.ArrowException: for a damaged file, here and from `batches`.
    """

    def __init__(self, opened: BinaryIO, what: str, max_bytes: int | None = None) -> None:
        self.opened, self.what, self.max_bytes = opened, what, max_bytes
        self.table = pq.ParquetFile(opened, pre_buffer=False, buffer_size=BUFFER)
        self.schema: pa.Schema = self.table.schema_arrow

    def batches(self, columns: Collection[str], first: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The number of the first row of each batch, and the batch; from the row group on that contains row `first`.

        Raises:
            InputError: for a page above the limit, with its row.
        """
        if not {*columns} <= {*self.schema.names}:
            raise ValueError(f"found the columns {', '.join(self.schema.names)}, expected {', '.join(columns)}")
        row = 0
        for group in range(self.table.metadata.num_row_groups):
            num_rows = self.table.metadata.row_group(group).num_rows
            if row + num_rows > first:
                bound = max(1, *(self._largest_value(group, column, row) for column in self._leaves(columns)))
                rows = max(1, min(ROWS, BATCH_BYTES // bound))
                for batch in self.table.iter_batches(rows, row_groups=[group], columns=list(columns)):
                    yield row, batch
                    row += len(batch)
            else:
                row += num_rows

    def _leaves(self, columns: Collection[str]) -> list[int]:
        """Numbers of the stored columns that `columns` consist of."""
        schema = self.table.schema
        return [i for i in range(len(schema)) if schema.column(i).path.partition(".")[0] in columns]

    def _largest_value(self, group: int, column: int, row: int) -> int:
        """An upper bound of the bytes of a value of a column; `row` is the first row of the group."""
        chunk = self.table.metadata.row_group(group).column(column)
        largest = total = 0
        for page in pages(self.opened, chunk):
            if self.max_bytes is not None and page.uncompressed > self.max_bytes:
                raise InputError(
                    f"{self.what}: found a page of {page.uncompressed / 1e6:.0f} MB at row {row} in the column "
                    f"{chunk.path_in_schema}, expected at most {self.max_bytes / 1e6:.0f} MB; raise "
                    "data.max_document_mb, or write the file with shorter documents or smaller pages."
                )
            row += page.values
            total += page.uncompressed
            largest = total if page.has_differences else max(largest, page.uncompressed)
        return largest


def pages(opened: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """The pages of a column in a row group, in order; only their headers are read. Raises ValueError if damaged."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    opened.seek(start)
    remaining = chunk.num_values
    while remaining > 0:
        header = _struct(opened)
        data, data_v2 = (_fields(header.get(number, {})) for number in (DATA_PAGE, DATA_PAGE_V2))
        values = _natural((data or data_v2).get(NUM_VALUES, 0))
        encoding = data.get(ENCODING, data_v2.get(ENCODING_V2))
        yield Page(values, _natural(header.get(UNCOMPRESSED)), encoding == DELTA_BYTE_ARRAY)
        opened.seek(_natural(header.get(COMPRESSED)), io.SEEK_CUR)
        remaining -= values


def _natural(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"the header of a page has the size {value}")
    return value


def _fields(value: Any) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise ValueError("the header of a page lacks its data header")
    return value


def _struct(opened: BinaryIO, depth: int = 0) -> dict[int, Any]:
    """Number -> value of the fields of a struct; None for values that are skipped."""
    if depth > MAX_DEPTH:
        raise ValueError("the header of a page is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while head := _byte(opened):
        number = number + (head >> 4) if head >> 4 else _integer(opened)
        fields[number] = _value(opened, head & 15, depth)
    return fields


def _value(opened: BinaryIO, kind: int, depth: int) -> Any:
    match kind:
        case 1 | 2:  # true, false
            return kind == 1
        case 3:
            return _byte(opened)
        case 4 | 5 | 6:  # integers of 16, 32 and 64 bits
            return _integer(opened)
        case 7 | 8:  # a double, or a string after its length
            opened.seek(8 if kind == 7 else _natural(_varint(opened)), io.SEEK_CUR)
            return None
        case 12:
            return _struct(opened, depth + 1)
    raise ValueError(f"the header of a page has a field of the unknown type {kind}")


def _byte(opened: BinaryIO) -> int:
    byte = opened.read(1)
    if not byte:
        raise ValueError("the header of a page is truncated")
    return byte[0]


def _varint(opened: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(opened)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("the header of a page contains a number that is too long")


def _integer(opened: BinaryIO) -> int:
    """A number in zigzag encoding."""
    value = _varint(opened)
    return (value >> 1) ^ -(value & 1)
