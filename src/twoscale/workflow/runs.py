"""The runs of a config, and the jobs that they need.

Rules use the methods of `Runs` and of its parts as Snakemake's input, param and resource functions. Such a function
uses `run` and `iteration` of Snakemake's `wildcards`; without a wildcard `run` it is about the selected run. Planning
imports neither Snakemake nor torch, so it stays fast and unit tests need no workflow.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from twoscale import config as configs
from twoscale.base import InputError
from twoscale.config import Config, DownloadConfig, ExitsConfig
from twoscale.config.messages import build
from twoscale.discovery import study_parts
from twoscale.figures.catalogue import figures
from twoscale.model.published.folder import folder_layer
from twoscale.report import release as releases
from twoscale.workflow.core import JOBS, PROBE_JOB
from twoscale.workflow.params import Params, criterion_files
from twoscale.workflow.paths import Paths, trains
from twoscale.workflow.report import Report
from twoscale.workflow.resources import Resources
from twoscale.workflow.rows import Comparison, Job

NOTHING = "(?!)"  # a regular expression that matches nothing
RESULTS = "results"
RELEASE_STAGES = ("claims", "released_tables")  # files of rules that released tables need besides those of figures


class Runs:
    """The runs of a config: first the selected one, also under further seeds, then `runs`, then the studies.

    With the key `release` those of a release, whose tables take the place of the results of jobs.

    Args:
        config: Snakemake's merged config.
        scripts: Folder of the entry scripts.

    Raises InputError for a config with a wrong key or value.
    """

    paths: Paths
    params: Params
    resources: Resources
    report: Report

    def __init__(self, config: Mapping[str, Any], scripts: Path) -> None:
        self.release = _release(config)
        self.configs: dict[str, Config] = (
            configs.runs(config, folder_layer) | configs.studies(config, folder_layer)
            if self.release is None
            else self.release.runs(config)
        )
        self.selected = next(iter(self.configs))
        self.figures = list(figures())
        self.table_root = RESULTS if self.release is None else releases.FOLDER  # of the tables that are shown
        self.paths, self.params, self.resources = Paths(self), Params(self, scripts), Resources(self)
        self.report = Report(self)
        if self.release is None:
            for run in self.configs.values():
                _check_files(run)

    def __iter__(self) -> Iterator[str]:
        return iter(self.configs)

    def __getitem__(self, run: str) -> Config:
        return self.configs[run]

    def of(self, wildcards: Any) -> tuple[str, Config]:
        """The run that these wildcards are about, and its config."""
        run = getattr(wildcards, "run", self.selected)
        return run, self.configs[run]

    def exits(self, wildcards: Any, grid: str | None = None) -> ExitsConfig:
        """The criteria and settings on a grid of thresholds, a wildcard unless given; see `CoreConfig.exit_grids`."""
        return self.of(wildcards)[1].exit_grids[grid or wildcards.grid]

    @property
    def config(self) -> Config:
        """Config of the selected run."""
        return self.configs[self.selected]

    def study(self, name: str) -> list[str]:
        """Names of the runs of a study; of "seeds": the selected run under every seed."""
        if name == "seeds":
            seeds = (seed for seed in self.config.seeds if seed != self.config.seed)
            return [self.selected, *(f"{self.selected}-seed{seed}" for seed in seeds)]
        return [run for run in self.configs if run.startswith(f"{name}/")]

    # --- constraints of wildcards -----------------------------------------------------------------------------------

    @property
    def pattern(self) -> str:
        """Regular expression of the wildcard `run`."""
        return alternatives(self.configs)

    @property
    def trained_pattern(self) -> str:
        """Regular expression of the wildcard `run` for runs that are trained here."""
        return alternatives(run for run, config in self.configs.items() if trains(config))

    @property
    def last_segments(self) -> str:
        """Regular expression of the wildcard `run` that matches only in paths of a run's last checkpoint."""
        folders = "checkpoints|training|logs|benchmarks"
        last = {run: self.paths.iterations(run)[-1] for run, config in self.configs.items() if trains(config)}
        patterns = [rf"{re.escape(run)}(?=/(?:{folders})/\D*{iteration:06d}\.)" for run, iteration in last.items()]
        return "|".join(patterns) or NOTHING

    @property
    def criterion_pattern(self) -> str:
        """Regular expression of the wildcard `criterion`."""
        used = (exits for config in self.configs.values() for exits in config.exit_grids.values())
        return alternatives(dict.fromkeys(name for exits in used for name in exits.criteria))

    @property
    def repository_pattern(self) -> str:
        """Regular expression of the wildcard `model`, a folder in results/models."""
        return alternatives(self.paths.repositories)

    # --- jobs and releases ------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> list[Job]:
        """The rows of the core and of all studies, with the name of the selected run in their outputs."""
        rows = [*JOBS, PROBE_JOB, *(job for part in study_parts("study").values() for job in getattr(part, "JOBS", ()))]
        return [replace(row, outputs=row.outputs_of(self.selected)) for row in rows]

    @property
    def comparisons(self) -> list[Comparison]:
        """The jobs on tables."""
        return [job for job in self.jobs if isinstance(job, Comparison)]

    def includes(self, stage: str) -> bool:
        """Whether the rules of a stage, a file of workflow/rules/, take part. A release needs none that computes."""
        return self.release is None or stage in RELEASE_STAGES

    @property
    def released_tables(self) -> dict[str, str]:
        """Path in the release -> file for each of its tables, except the verdicts, which are judged again."""
        assert self.release is not None
        verdicts = f"{self.selected}/tables/claims.parquet"
        return {name: f"{releases.FOLDER}/{name}" for name in self.release.tables if name != verdicts}

    def unreleased(self, files: Iterable[str]) -> str | None:
        """The end of a sentence about files of runs that the release lacks, or None."""
        if self.release is None:
            return None
        absent = [file for file in files if file not in self.release.tables]
        return f"is from the release {self.release.source}, which has no {', '.join(absent)}" if absent else None


def alternatives(names: Iterable[str]) -> str:
    """Regular expression that matches these names literally, and nothing else."""
    return "|".join(map(re.escape, names)) or NOTHING


def _check_files(config: Config) -> None:
    """Refuse files of the config that cannot be read, or that Snakemake would take for a pattern, before any job."""
    for exits in config.exit_grids.values():
        criterion_files(exits.criteria)
    if {"{", "}"} & set(config.model.folder or ""):
        raise InputError(
            f"config key model.folder: found {config.model.folder}, expected a path without braces, which are "
            "wildcards in the names of input files."
        )


def _release(config: Mapping[str, Any]) -> releases.Release | None:
    """The release that the config names, if it names one. Raises InputError."""
    if config.get("release") is None:
        return None
    download = build(DownloadConfig, config.get("download") or {}, "download")
    return releases.Release.open(config["release"], download)
