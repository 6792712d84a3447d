"""The files of runs: where each lies, and on which files a job depends."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoscale import config as configs
from twoscale.base import InputError
from twoscale.config import Config, ModelConfig
from twoscale.export.released import check_released
from twoscale.model.published.folder import CONFIG, INDEX, PublishedFolder

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

GPT2 = "results/gpt2.tiktoken"
TOKENIZER = "tokenizer.json"
PROBE = "probe.safetensors"
OPTIMIZER = ".optimizer.safetensors"  # end of the names of optimizer states
QUALITY = "results/{run}/exits/{grid}/{criterion}.quality.parquet"
MANIFEST = "published.json"  # of a model from the hub, written when its download is complete
# Further files of a published model that may name its end of text.
TOKENIZER_SETTINGS = ("tokenizer_config.json", "generation_config.json", CONFIG)


@dataclass(frozen=True)
class Paths:
    """The files of runs. Where nothing else is said, a method is an input function or makes one."""

    runs: "Runs"

    def table_file(self, table: str) -> str:
        """The file of a table of the selected run that figures and claims read."""
        return f"{self.runs.table_root}/{self.runs.selected}/tables/{table}.parquet"

    # --- text and tokens --------------------------------------------------------------------------------------------

    @property
    def text_shards(self) -> list[str]:
        """Names of the files that the text of a run is split into."""
        return [f"shard_{number:03d}" for number in range(self.runs.config.data.text_shards)]

    def data_run(self, run: str) -> str:
        """The run whose text and tokens `run` trains on: the selected one, unless the data configs differ."""
        same = _text_identity(self.runs[run]) == _text_identity(self.runs.config)
        return self.runs.selected if same else run

    def data_file(self, name: str) -> Callable:
        """A file of the text or tokens that the run trains on."""
        return lambda wildcards: f"results/{self.data_run(self.runs.of(wildcards)[0])}/data/{name}"

    @property
    def held_out(self) -> dict[str, Callable]:
        """Held-out tokens, inputs of all jobs that open a checkpoint."""
        return {"val": self.data_file("val.bin"), "metadata": self.data_file("tokens.json")}

    def tokenizer_file(self, wildcards: Any) -> str | list[str]:
        """The file of the run's tokenizer; empty for bytes, which have none."""
        run, config = self.runs.of(wildcards)
        match config.tokenizer.name:
            case "published":
                return f"{self.model_folder(run)}/{TOKENIZER}"
            case "bpe":
                return self.data_file(TOKENIZER)(wildcards)
            case name:
                return GPT2 if name == "gpt2" else []

    def tokenizer_settings(self, wildcards: Any) -> list[str]:
        """The files besides that of its tokenizer on which the tokens of a published model depend."""
        model = self.runs.of(wildcards)[1].model
        if model.folder is None:
            return self.model_files(wildcards)
        return [str(path) for name in TOKENIZER_SETTINGS if (path := Path(model.folder, name)).is_file()]

    def counting_tokenizer(self, wildcards: Any) -> str | list[str]:
        """The tokenizer that counts text while it is collected; empty where characters are counted."""
        return GPT2 if self.runs.of(wildcards)[1].tokenizer.name == "gpt2" else []

    @property
    def downloads(self) -> list[str]:
        """Files of all runs that later jobs cannot recreate without a network."""
        files: dict[str, None] = {}
        for run, config in self.runs.configs.items():
            folder = f"results/{self.data_run(run)}/data/text"
            files |= dict.fromkeys(f"{folder}/{shard}.parquet" for shard in self.text_shards)
            files |= {GPT2: None} if config.tokenizer.name == "gpt2" else {}
            files |= {f"{self.model_folder(run)}/{MANIFEST}": None} if config.model.repository is not None else {}
        return list(files)

    # --- published models -------------------------------------------------------------------------------------------

    @cached_property
    def repositories(self) -> dict[str, dict[str, str | None]]:
        """Name of a folder in results/models -> repository and revision of the hub that it is downloaded from."""
        models = [config.model for config in self.runs.configs.values() if config.model.repository is not None]
        return {
            repository_name(model): {"repository": model.repository, "revision": model.revision} for model in models
        }

    def model_folder(self, run: str) -> str:
        """The folder with the files of a published model."""
        model = self.runs[run].model
        return model.folder if model.folder is not None else f"results/models/{repository_name(model)}"

    def model_files(self, wildcards: Any) -> list[str]:
        """The files of a published model besides config.json; empty for a trained one.

        The manifest of the download represents those of a repository, because they are not known before.
        """
        run, config = self.runs.of(wildcards)
        if trains(config):
            return []
        if config.model.folder is None:
            return [f"{self.model_folder(run)}/{MANIFEST}"]
        index = Path(config.model.folder, INDEX)
        files = PublishedFolder(Path(config.model.folder)).weight_files
        return [str(path) for path in ([index] if index.is_file() else []) + files]

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def iterations(self, run: str) -> list[int]:
        """Iterations of all checkpoints, ascending: 0, the untrained or the published model, and those of training."""
        config = self.runs[run]
        return [0, *(configs.checkpoint_iterations(config.train) if trains(config) else [])]

    def checkpoint(self, run: str, iteration: int) -> str:
        """The file that represents a checkpoint; for a published model, its config.json."""
        if trains(self.runs[run]):
            return f"results/{run}/checkpoints/iteration_{iteration:06d}.safetensors"
        if iteration:
            raise InputError(
                f"run {run}: found no checkpoint at iteration {iteration}, expected iteration 0 of the published model."
            )
        return f"{self.model_folder(run)}/{CONFIG}"

    def checkpoint_file(self, wildcards: Any) -> str:
        """The checkpoint at the wildcard `iteration`."""
        return self.checkpoint(wildcards.run, int(wildcards.iteration))

    def last_checkpoint(self, wildcards: Any) -> str:
        """The last checkpoint of the run."""
        run, _ = self.runs.of(wildcards)
        return self.checkpoint(run, self.iterations(run)[-1])

    def later_checkpoints(self, wildcards: Any) -> list[str]:
        """The checkpoints of the run after the wildcard `iteration`."""
        run, iteration = wildcards.run, int(wildcards.iteration)
        return [self.checkpoint(run, later) for later in self.iterations(run) if later > iteration]

    def release_checkpoints(self, wildcards: Any) -> list[str]:
        """All checkpoints of the run, the last one last. InputError for a model without a release."""
        run, config = self.runs.of(wildcards)
        check_released(run, config.model)
        return [self.checkpoint(run, iteration) for iteration in self.iterations(run)]

    def segment_start(self, wildcards: Any) -> list[str]:
        """The checkpoint that a segment starts from, and its optimizer state unless it is untrained.

        Raises InputError for an iteration off the schedule.
        """
        run, iteration = wildcards.run, int(wildcards.iteration)
        iterations = self.iterations(run)
        if iteration not in iterations[1:]:
            raise InputError(
                f"run {run}: found no checkpoint at iteration {iteration}, expected one of {iterations[1:]}."
            )
        before = iterations[iterations.index(iteration) - 1]
        weights = self.checkpoint(run, before)
        return [weights, weights.replace(".safetensors", OPTIMIZER)] if before else [weights]

    def at_checkpoints(self, pattern: str, untrained: bool = True) -> Callable:
        """`pattern` with {run} and {iteration} of each checkpoint, iteration 0 included or not."""

        def files(wildcards: Any) -> list[str]:
            run, _ = self.runs.of(wildcards)
            iterations = self.iterations(run)[0 if untrained else 1 :]
            return [pattern.format(run=run, iteration=f"{iteration:06d}") for iteration in iterations]

        return files

    # --- exit criteria ----------------------------------------------------------------------------------------------

    def each_criterion(self, pattern: str, grid: str | None = None, of_users: bool = False) -> Callable:
        """`pattern` with {run}, {grid} and {criterion} of each criterion, or only of users' ones.

        `grid` is a wildcard unless given.
        """

        def files(wildcards: Any) -> list[str]:
            run, _ = self.runs.of(wildcards)
            entries = self.runs.exits(wildcards, grid).criteria.items()
            # sorted, as in the slices of a job
            names = sorted(name for name, entry in entries if entry.file is not None or not of_users)
            return [pattern.format(run=run, grid=grid or wildcards.grid, criterion=name) for name in names]

        return files

    def of_exits(self, grid: str) -> dict[str, Callable]:
        """Inputs of a job on all criteria of a grid: the fitted probe, and the quality of users' criteria.

        A user's criterion that fails does so before this job.
        """
        return {"criteria": self.each_criterion(QUALITY, grid, of_users=True), "probe": self.probe_file(grid)}

    def probe_file(self, grid: str | None = None) -> Callable:
        """The fitted probe where the criterion `probe` is measured; empty elsewhere.

        It is about the wildcard `criterion`, or about all criteria of `grid`.
        """

        def file(wildcards: Any) -> str | list[str]:
            run, _ = self.runs.of(wildcards)
            names = [wildcards.criterion] if grid is None else self.runs.exits(wildcards, grid).criteria
            return f"results/{run}/{PROBE}" if "probe" in names else []

        return file


def trains(config: Config) -> bool:
    """Whether the weights of a run are trained here."""
    return config.model.source == "trained"


def repository_name(model: ModelConfig) -> str:
    """Name of the folder that a published model is downloaded to."""
    assert model.repository is not None
    assert model.revision is not None
    return f"{model.repository.replace('/', '--')}--{model.revision[:12]}"


def _text_identity(config: Config) -> tuple[Any, ...]:
    """Everything that the text and the tokens of a run depend on."""
    model = config.model
    own = (model.repository, model.revision, model.folder) if config.tokenizer.name == "published" else None
    return config.data, config.tokenizer, own
