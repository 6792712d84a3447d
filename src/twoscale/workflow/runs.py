"""The runs of a config and their files: where each lies, and on which files a job depends.

Rules use the methods of `Runs`, `Params` and `Figures` as Snakemake's input, param and resource
functions. Such a function uses `run` and `iteration` of Snakemake's `wildcards`; without a wildcard
`run` it is about the selected run. Planning imports Snakemake, pydantic, PyYAML and jinja2 only, so
it is fast and unit tests need no workflow.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoscale import config as configs
from twoscale.base import InputError
from twoscale.config import Config, DownloadConfig, ExitsConfig
from twoscale.config.types import build
from twoscale.workflow.data_files import RESULTS, DataFiles, trains
from twoscale.workflow.figures import Figures
from twoscale.workflow.params import OPTIMIZER, Params, criterion_files
from twoscale.workflow.resources import Resources

if TYPE_CHECKING:
    from twoscale.report.release import Release

_NOTHING = "(?!)"  # a regular expression that matches nothing
RELEASED = "results/released"  # folder of the tables of a release


class Runs:
    """The runs of a config: first the selected one, also under further seeds, then `runs`, then the
    studies.

    With the key `release` those of a release, whose tables take the place of the results of jobs.
    Unless noted, methods are input functions or return one.

    Args:
        config: Snakemake's merged config.
        scripts: Folder of the entry scripts.

    Raises InputError for a config with a wrong key or value.
    """

    def __init__(self, config: Mapping[str, Any], scripts: Path) -> None:
        self.release: Release | None = None
        if (source := config.get("release")) is not None:
            download = build(DownloadConfig, config.get("download") or {}, "download")
            self.release = import_module("twoscale.report.release").Release.open(source, download)
        self.configs: dict[str, Config] = (
            self.release.runs(config)
            if self.release
            else configs.runs(config) | configs.studies(config)
        )
        self.selected = next(iter(self.configs))
        # of the tables that are shown
        self.table_root = RESULTS if self.release is None else RELEASED
        self.data = DataFiles(self.configs)
        self.params = Params(self, scripts)
        self.resources = Resources(self)
        self.figures = Figures(self)
        if self.release is None:
            # refuses a user's file that cannot be read, before any job
            for run in self.configs.values():
                for exits in run.exit_grids.values():
                    criterion_files(exits.criteria)

    def __iter__(self) -> Iterator[str]:
        return iter(self.configs)

    def __getitem__(self, run: str) -> Config:
        return self.configs[run]

    def of(self, wildcards: Any) -> tuple[str, Config]:
        """The run that these wildcards are about, and its config."""
        return self.data.of(wildcards)

    def exits(self, wildcards: Any, grid: str | None = None) -> ExitsConfig:
        """The criteria and settings on a grid of thresholds, a wildcard unless given; see
        `CoreConfig.exit_grids`.
        """
        return self.of(wildcards)[1].exit_grids[grid or wildcards.grid]

    @property
    def config(self) -> Config:
        return self.configs[self.selected]

    @property
    def seed_runs(self) -> list[str]:
        """The selected run under every seed."""
        further = (seed for seed in self.config.seeds if seed != self.config.seed)
        return [self.selected, *(f"{self.selected}-seed{seed}" for seed in further)]

    def study(self, name: str) -> list[str]:
        """Names of the runs of a study."""
        return [run for run in self.configs if run.startswith(f"{name}/")]

    # --- constraints of wildcards -----------------------------------------------------------------

    @property
    def trained_pattern(self) -> str:
        """Pattern of the wildcard `run` for runs that are trained here."""
        return alternatives(run for run, config in self.configs.items() if trains(config))

    @property
    def last_segments(self) -> str:
        """Pattern of the wildcard `run` that matches only in paths of a run's last checkpoint."""
        last = {
            run: self.iterations(run)[-1] for run, config in self.configs.items() if trains(config)
        }
        # a lookahead: the run matches only where its last iteration follows in the path
        path = r"(?=/(?:checkpoints|training|logs|benchmarks)/\D*%06d\.)"
        return (
            "|".join(re.escape(run) + path % iteration for run, iteration in last.items())
            or _NOTHING
        )

    @property
    def criterion_pattern(self) -> str:
        used = (exits for config in self.configs.values() for exits in config.exit_grids.values())
        return alternatives(dict.fromkeys(name for exits in used for name in exits.criteria))

    # --- tables -----------------------------------------------------------------------------------

    def table_file(self, table: str) -> str:
        """The file of a table of the selected run that figures and claims read."""
        return f"{self.table_root}/{self.selected}/tables/{table}.parquet"

    def unreleased(self, files: Iterable[str]) -> str | None:
        """The end of a sentence about files of runs that the release lacks, or None."""
        if self.release is None:
            return None
        absent = [file for file in files if file not in self.release.tables]
        if not absent:
            return None
        return f"is from the release {self.release.source}, which has no {', '.join(absent)}"

    # --- checkpoints ------------------------------------------------------------------------------

    def iterations(self, run: str) -> list[int]:
        """Iterations of all checkpoints, ascending: 0, the untrained or the published model, and
        those of training.
        """
        config = self[run]
        return [0, *(configs.checkpoint_iterations(config.train) if trains(config) else [])]

    def checkpoint(self, run: str, iteration: int) -> str:
        """The file that represents a checkpoint; for a published model, its config.json."""
        if trains(self[run]):
            return f"results/{run}/checkpoints/iteration_{iteration:06d}.safetensors"
        if iteration:
            found = (
                f"found no checkpoint at iteration {iteration}, expected iteration 0 of the"
                f" published model"
            )
            raise InputError(f"run {run}: {found}.")
        return f"{self.data.model_folder(run)}/config.json"

    def checkpoint_file(self, wildcards: Any) -> str:
        return self.checkpoint(wildcards.run, int(wildcards.iteration))

    def last_checkpoint(self, wildcards: Any) -> str:
        run, _ = self.of(wildcards)
        return self.checkpoint(run, self.iterations(run)[-1])

    def segment_start(self, wildcards: Any) -> list[str]:
        """The checkpoint that a segment starts from, and its optimizer state unless it is
        untrained.
        """
        run, iteration = wildcards.run, int(wildcards.iteration)
        iterations = self.iterations(run)
        if iteration not in iterations[1:]:
            found = f"found no checkpoint at iteration {iteration}"
            raise InputError(f"run {run}: {found}, expected one of {iterations[1:]}.")
        before = iterations[iterations.index(iteration) - 1]
        weights = self.checkpoint(run, before)
        return [weights, weights.replace(".safetensors", OPTIMIZER)] if before else [weights]

    def at_checkpoints(self, pattern: str, untrained: bool = True) -> Callable:
        """`pattern` with {run} and {iteration} of each checkpoint, iteration 0 included or not."""

        def files(wildcards: Any) -> list[str]:
            run, _ = self.of(wildcards)
            return [
                pattern.format(run=run, iteration=f"{n:06d}")
                for n in self.iterations(run)
                if n or untrained
            ]

        return files

    # --- exit criteria ----------------------------------------------------------------------------

    def each_criterion(self, pattern: str, users_of: str | None = None) -> Callable:
        """`pattern` with {run}, {grid} and {criterion} of each criterion, or only of users' ones on
        the grid given.
        """

        def files(wildcards: Any) -> list[str]:
            run, _ = self.of(wildcards)
            grid = users_of or wildcards.grid
            criteria = self.exits(wildcards, users_of).criteria
            return [
                pattern.format(run=run, grid=grid, criterion=name)
                for name in sorted(criteria)  # as in the config of a job
                if criteria[name].file is not None or users_of is None
            ]

        return files


def alternatives(names: Iterable[str]) -> str:
    """Regular expression that matches these names literally, and nothing else."""
    return "|".join(map(re.escape, names)) or _NOTHING
