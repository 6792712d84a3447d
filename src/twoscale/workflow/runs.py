"""The runs of a config and their files: where each lies, and on which files a job depends.

Rules use the methods of `Runs`, `Params` and `Figures` as Snakemake's input, param and resource
functions. Such a function uses `run` and `iteration` of Snakemake's `wildcards`; without a wildcard
`run` it is about the selected run. Planning imports Snakemake, pydantic, PyYAML and jinja2 only, so
it is fast and unit tests need no workflow.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoscale import config as configs
from twoscale.base import InputError, json_digest
from twoscale.config import Config, DownloadConfig, ExitsConfig, ModelConfig
from twoscale.config.types import build
from twoscale.workflow.figures import Figures
from twoscale.workflow.params import OPTIMIZER, Params, criterion_files, trains
from twoscale.workflow.resources import Resources

if TYPE_CHECKING:
    from twoscale.report.release import Release

NOTHING = "(?!)"  # a regular expression that matches nothing
RESULTS, RELEASED = (
    "results",
    "results/released",
)  # folders of runs here, and of the tables of a release
RESOURCES = "resources"  # folder of what comes from a network, which runs share
GPT2 = "gpt2.tiktoken"
TOKENIZER = "tokenizer.json"
MANIFEST = "published.json"  # of a model from the hub, written when its download is complete
# Further files of a published model that may name its end of text.
TOKENIZER_SETTINGS = ("tokenizer_config.json", "generation_config.json", "config.json")


class Runs:
    """The runs of a config: first the selected one, also under further seeds, then `runs`, then the
    studies.

    With the key `release` those of a release, whose tables take the place of the results of jobs.
    Where nothing else is said, a method is an input function or makes one.

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
        self.table_root = (
            RESULTS if self.release is None else RELEASED
        )  # of the tables that are shown
        self.params = Params(self, scripts)
        self.resources = Resources(self)
        self.figures = Figures(self)
        for run in self.configs.values() if self.release is None else ():
            for exits in (
                run.exit_grids.values()
            ):  # refuses a user's file that cannot be read, before any job
                criterion_files(exits.criteria)

    def __iter__(self) -> Iterator[str]:
        return iter(self.configs)

    def __getitem__(self, run: str) -> Config:
        return self.configs[run]

    def of(self, wildcards: Any) -> tuple[str, Config]:
        """The run that these wildcards are about, and its config."""
        if hasattr(wildcards, "dataset"):
            run = self.datasets[wildcards.dataset]
        else:
            run = getattr(wildcards, "run", self.selected)
        return run, self.configs[run]

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
        path = r"(?=/(?:checkpoints|training|logs|benchmarks)/\D*%06d\.)"
        return (
            "|".join(re.escape(run) + path % iteration for run, iteration in last.items())
            or NOTHING
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
        if (release := self.release) is None or not (
            absent := [file for file in files if file not in release.tables]
        ):
            return None
        return f"is from the release {release.source}, which has no {', '.join(absent)}"

    # --- text and tokens --------------------------------------------------------------------------

    @property
    def text_shards(self) -> list[str]:
        return [f"shard_{number:03d}" for number in range(self.config.data.text_shards)]

    def data_run(self, run: str) -> str:
        """The run whose text and tokens `run` trains on: the selected one, unless what shapes them
        differs.
        """

        def identity(config: Config) -> tuple[Any, ...]:
            model, published = config.model, config.tokenizer.name == "published"
            return (
                config.data,
                config.tokenizer,
                published and (model.repository, model.revision, model.folder),
            )

        return self.selected if identity(self[run]) == identity(self.config) else run

    def data_file(self, name: str) -> Callable:
        """A file of the text or tokens that the run trains on."""
        return lambda wildcards: f"results/{self.data_run(self.of(wildcards)[0])}/data/{name}"

    @cached_property
    def datasets(self) -> dict[str, str]:
        """Name of a text from a hub, a folder in resources/text -> the first run with this text."""
        runs: dict[str, str] = {}
        for run in self:
            if (dataset := self.dataset(run)) is not None:
                runs.setdefault(dataset, run)
        return runs

    def dataset(self, run: str) -> str | None:
        """<data set>/<digest of the keys that shape the text>, if the text of a run comes from a
        hub.

        Texts of one data set share the folder of their parts, from which a larger text continues.
        """
        data = self[run].data
        if data.source in (*configs.FILE_SOURCES, "python_docs"):
            return None
        quota = configs.text_quota(data, self[run].tokenizer)
        name = "--".join([data.repository, data.subset, data.revision[:12], quota.unit])
        digest = json_digest([configs.text_source(data), asdict(quota)])
        return f"{re.sub('[^A-Za-z0-9._-]', '-', name)}/{digest}"

    def text_folder(self, run: str) -> str:
        """The folder with the text of a run: with its results, or in resources/ if it comes from a
        hub.
        """
        own = f"results/{self.data_run(run)}/data"
        dataset = self.dataset(run)
        # earlier versions kept texts and parts of a hub there too
        kept = any(Path(own, name).is_dir() for name in ("text", "parts"))
        return f"{own}/text" if dataset is None or kept else f"{RESOURCES}/text/{dataset}"

    def text_file(self, name: str) -> Callable:
        """A file of the text that the run trains on."""
        return lambda wildcards: f"{self.text_folder(self.of(wildcards)[0])}/{name}"

    @property
    def held_out(self) -> dict[str, Callable]:
        """Held-out tokens, inputs of all jobs that open a checkpoint."""
        return {"val": self.data_file("val.bin"), "metadata": self.data_file("tokens.json")}

    def tokenizer_file(self, wildcards: Any) -> str | list[str]:
        """The file of the run's tokenizer; empty for bytes, which have none."""
        run, config = self.of(wildcards)
        match config.tokenizer.name:
            case "published":
                return f"{self.model_folder(run)}/{TOKENIZER}"
            case "bpe":
                return self.data_file(TOKENIZER)(wildcards)
            case name:
                return downloaded(GPT2) if name == "gpt2" else []

    def tokenizer_settings(self, wildcards: Any) -> list[str]:
        """Further files on which the tokens of a published model depend."""
        model = self.of(wildcards)[1].model
        if model.folder is None:
            return self.model_files(wildcards)
        return [
            str(path) for name in TOKENIZER_SETTINGS if (path := Path(model.folder, name)).is_file()
        ]

    @property
    def downloads(self) -> list[str]:
        """Files of all runs that later jobs cannot recreate without a network."""
        files: dict[str, None] = {}
        for run, config in self.configs.items():
            folder = self.text_folder(run)
            files |= dict.fromkeys(f"{folder}/{shard}.parquet" for shard in self.text_shards)
            files |= {downloaded(GPT2): None} if config.tokenizer.name == "gpt2" else {}
            files |= (
                {f"{self.model_folder(run)}/{MANIFEST}": None}
                if config.model.repository is not None
                else {}
            )
        return list(files)

    # --- published models -------------------------------------------------------------------------

    @cached_property
    def repositories(self) -> dict[str, dict[str, str | None]]:
        """Name of a folder in resources/models -> repository and revision of the hub that it is
        downloaded from.
        """
        models = (
            config.model for config in self.configs.values() if config.model.repository is not None
        )
        return {
            repository_name(each): {"repository": each.repository, "revision": each.revision}
            for each in models
        }

    def model_folder(self, run: str) -> str:
        """The folder with the files of a published model."""
        model = self[run].model
        return (
            model.folder
            if model.folder is not None
            else downloaded(f"models/{repository_name(model)}")
        )

    def model_files(self, wildcards: Any) -> list[str]:
        """The files of a published model besides config.json; for those of a repository, the
        manifest of a download.
        """
        run, config = self.of(wildcards)
        if trains(config):
            return []
        if config.model.folder is None:
            return [f"{self.model_folder(run)}/{MANIFEST}"]
        reader, folder = configs.folder_reader(), Path(config.model.folder)
        index, files = folder / reader.INDEX, reader.PublishedFolder(folder).weight_files
        return [str(path) for path in ([index] if index.is_file() else []) + files]

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
        return f"{self.model_folder(run)}/config.json"

    def checkpoint_file(self, wildcards: Any) -> str:
        return self.checkpoint(wildcards.run, int(wildcards.iteration))

    def last_checkpoint(self, wildcards: Any) -> str:
        run, _ = self.of(wildcards)
        return self.checkpoint(run, self.iterations(run)[-1])

    def later_checkpoints(self, wildcards: Any) -> list[str]:
        run, iteration = wildcards.run, int(wildcards.iteration)
        return [self.checkpoint(run, later) for later in self.iterations(run) if later > iteration]

    def segment_start(self, wildcards: Any) -> list[str]:
        """The checkpoint that a segment starts from, and its optimizer state unless it is
        untrained.
        """
        run, iteration = wildcards.run, int(wildcards.iteration)
        first, *trained = self.iterations(run)
        if iteration not in trained:
            raise InputError(
                f"run {run}: found no checkpoint at iteration {iteration}, expected one of"
                f" {trained}."
            )
        before = [first, *trained][trained.index(iteration)]
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
            entries = sorted(
                self.exits(wildcards, users_of).criteria.items()
            )  # as in the slices of a job
            names = [name for name, entry in entries if entry.file is not None or users_of is None]
            return [
                pattern.format(run=run, grid=users_of or wildcards.grid, criterion=name)
                for name in names
            ]

        return files


def downloaded(name: str) -> str:
    """Where a download is: in resources/, or in results/, where earlier versions kept it."""
    earlier = f"{RESULTS}/{name}"
    return earlier if Path(earlier).exists() else f"{RESOURCES}/{name}"


def alternatives(names: Iterable[str]) -> str:
    """Regular expression that matches these names literally, and nothing else."""
    return "|".join(map(re.escape, names)) or NOTHING


def repository_name(model: ModelConfig) -> str:
    """Name of the folder that a published model is downloaded to."""
    assert model.repository is not None
    assert model.revision is not None
    return f"{model.repository.replace('/', '--')}--{model.revision[:12]}"
