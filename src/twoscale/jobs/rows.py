"""Jobs as rows, in `JOBS` of `twoscale.workflow.core` and of a study, and what the function of a row is called with.

The rules of workflow/rules/measurements.smk follow from these rows, so a study needs no rule file unless it has other
rules.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoscale import tables
from twoscale.base import replacing

if TYPE_CHECKING:
    import pandas as pd

    from twoscale.config import ConfigSlice
    from twoscale.workflow.runs import Runs


# Outputs of rows that inputs of other jobs name.
SEGMENT = "results/{run}/training/iteration_{iteration}.parquet"
QUALITY = "results/{run}/exits/{grid}/{criterion}.quality.parquet"
REPORT_RESULTS = "results/report/results.json"  # figure -> sentences, written with the first page of the report


def all_cores(runs: "Runs", cores: int | None) -> int:
    """Threads of a job that measures time: all cores, so that no other job disturbs it; torch itself uses one."""
    return cores or 1


def module_of(function: str) -> str:
    return function.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rule, and the function that its job calls with a `StudyJob`.

    Attributes:
        name: Name of the rule.
        function: Dotted path of the function.
        outputs: Name -> path, with the wildcards {run}, {iteration}, {grid} and {criterion} where there is a file
            for each; {selected} is the selected run.
        config: Param function of the slice of the config, see `Params.slice`; by default the name of the run.
        tables: Tables that the job writes.
        inputs: Name -> input function or path, besides those that every job of the kind has. The names, which are
            options of the script, are the same for every config.
        trained: Whether only models that are trained here have it.
    """

    name: str
    function: str
    outputs: Mapping[str, str]
    config: Callable[["Runs"], Callable] = lambda runs: runs.params.slice("run")
    tables: Sequence[str] = ()
    inputs: Callable[["Runs"], Mapping[str, Any]] = lambda runs: {}
    trained: bool = False

    @property
    def log(self) -> str:
        return self._file("logs", "log")

    @property
    def benchmark(self) -> str:
        return self._file("benchmarks", "tsv")

    def _file(self, folder: str, suffix: str) -> str:
        """With the wildcards of its outputs, for `twoscale.report.release.runtimes`: the iteration after "_"."""
        wildcards = re.findall(r"\{(\w+)\}", next(iter(self.outputs.values())).replace("{selected}", ""))
        run = "{run}/" if "run" in wildcards else ""
        further = "".join(f"{'_' if name == 'iteration' else '.'}{{{name}}}" for name in wildcards if name != "run")
        return f"results/{run}{folder}/{self.name}{further}.{suffix}"

    def files(self, runs: "Runs") -> dict[str, Any]:
        """All inputs of the rule."""
        return dict(self.inputs(runs))


@dataclass(frozen=True, kw_only=True)
class TorchJob(Job):
    """A job with torch on a checkpoint and held-out text; a rerun restores its result.

    It reads every checkpoint if its outputs have the wildcard {iteration}, otherwise the last one.

    Attributes:
        dtype: Section with the dtype in which the checkpoint is opened; determines the memory of a published model.
        minutes: Requested from a cluster at the first attempt.
        threads: (Runs, cores of the workflow) -> threads, or a function of the wildcards. Default: one.
        cpus: CPUs requested from a cluster.
        group: Group of jobs that a cluster runs as one, or a function of the wildcards.
    """

    dtype: str
    minutes: int = 60
    threads: Callable[["Runs", int | None], Any] = lambda runs, cores: 1
    cpus: int = 1
    group: Callable[["Runs"], Any] = lambda runs: None

    def files(self, runs: "Runs") -> dict[str, Any]:
        """A checkpoint, the files of its model and held-out text, and the row's own inputs."""
        each = any("{iteration}" in path for path in self.outputs.values())
        checkpoint = runs.checkpoint_file if each else runs.last_checkpoint
        return {"checkpoint": checkpoint, **runs.held_out, "model": runs.model_files} | super().files(runs)


@dataclass(frozen=True, kw_only=True)
class LocalJob(Job):
    """A job without torch, which runs where Snakemake runs: it reads tables, or writes pages.

    Attributes:
        target: Target rule that needs its page, or its last output.
        modules: Dotted names of modules that the function imports by name.
        report: Category and label of its page in Snakemake's report; empty if the report does not have it.
        caption_file: Caption of that page in the project.
    """

    target: str = ""
    modules: Callable[["Runs"], Sequence[str]] = lambda runs: ()
    report: tuple[str, ...] = ()
    caption_file: str = ""

    @property
    def shown(self) -> str:
        """The page, or the last output."""
        return self.outputs.get("page", [*self.outputs.values()][-1])


@dataclass(frozen=True)
class StudyJob:
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
