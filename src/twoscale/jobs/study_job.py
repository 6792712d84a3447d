"""The argument of the function of a job: its config and files, and how to read and write tables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoscale import tables
from twoscale.base import replacing
from twoscale.config import ConfigSlice

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StudyJob:
    """A job of a row of `twoscale.workflow.rows`. `files`: its inputs and outputs by name, each a list."""

    config: ConfigSlice
    files: Mapping[str, list[Path]]

    def file(self, name: str) -> Path:
        """The only file of this name."""
        (path,) = self.files[name]
        return path

    def optional(self, name: str) -> Path | None:
        """The only file of this name, if the job has one."""
        return self.file(name) if self.files.get(name) else None

    def read(self, table: str, name: str | None = None) -> "pd.DataFrame":
        """A table from the only file of this name; by default the name of the table."""
        return tables.read(table, self.file(name or table))

    def write(self, table: str, rows: "pd.DataFrame | Iterable[Mapping[str, Any]]", name: str | None = None) -> None:
        """Write a table to the file of this name, by default the name of the table; the column `run` is filled in."""
        import pandas as pd

        columns = list(tables.columns(table))
        frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows), columns=columns)
        if "run" in columns:
            frame = frame.assign(run=self.config.run)
        tables.write(table, frame, self.file(name or table))

    def write_text(self, name: str, text: str) -> None:
        """Write the only file of this name in one step."""
        with replacing(self.file(name)) as temporary:
            temporary.write_text(text, encoding="utf-8")
