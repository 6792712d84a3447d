"""What the function of a job is called with: its config, and its files by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from twoscale import tables
from twoscale.base import replacing

if TYPE_CHECKING:
    import pandas as pd

    from twoscale.config import ConfigSlice

Function = TypeVar("Function", bound=Callable)
FILES: dict[Callable, tuple[str, ...]] = {}  # function of a job -> names of its files
CHECKPOINT_FILES = ("checkpoint", "val", "metadata", "model")  # inputs of every job on a checkpoint


def job_files(*, reads: str = "", writes: str) -> Callable[[Function], Function]:
    """Declare the names of the inputs and outputs of the rule whose job calls this function.

    They are options of scripts/call.py; scripts/measure.py adds CHECKPOINT_FILES.
    """

    def declare(function: Function) -> Function:
        FILES[function] = (*reads.split(), *writes.split())
        return function

    return declare


@dataclass(frozen=True)
class TableJob:
    """The job that runs: its config, and its inputs and outputs by name, each a list of files."""

    config: "ConfigSlice"
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

    def write(
        self,
        table: str,
        rows: "pd.DataFrame | Iterable[Mapping[str, Any]]",
        name: str | None = None,
    ) -> None:
        """Write a table to the file of this name, by default the name of the table; the column
        `run` is filled in.
        """
        import pandas as pd

        columns = list(tables.columns(table))
        frame = (
            rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows), columns=columns)
        )
        if "run" in columns:
            frame = frame.assign(run=self.config.run)
        tables.write(table, frame, self.file(name or table))

    def write_text(self, name: str, text: str) -> None:
        """Write the only file of this name in one step."""
        with replacing(self.file(name)) as temporary:
            temporary.write_text(text, encoding="utf-8")
