"""Everything that the rules compute: the runs of a config, and the files, params and resources of their jobs.

Rules use `Runs` and the functions below as Snakemake's input, param and resource functions. A function of this kind
takes Snakemake's `wildcards`, of which it reads `run` and `iteration`; without a wildcard `run` it is about the chosen
run. Nothing here imports Snakemake or torch, so planning stays fast and unit tests need no workflow.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from twoscale import config as configs
from twoscale import tables
from twoscale.analysis import release as releases
from twoscale.canonical import canonical_json, json_digest
from twoscale.config import Config, CriterionConfig, DownloadConfig, ExitsConfig, ModelConfig
from twoscale.config.messages import build
from twoscale.data import source_files
from twoscale.discovery import study_parts
from twoscale.errors import InputError
from twoscale.escaping import rst
from twoscale.export.released import check_released
from twoscale.figures.catalogue import Figure, caption_values, figures, one_seed, report_values, snapshot_figures, table
from twoscale.files import sha256
from twoscale.fingerprint import criterion_file_fingerprint, fingerprint
from twoscale.launch import Share, torchrun_line
from twoscale.model.flops import BYTES, parameters
from twoscale.model.published.folder import CONFIG, INDEX, PublishedFolder
from twoscale.model.published.layer import folder_layer
from twoscale.studies.rows import Comparison, Job, Measurement
from twoscale.training.plan import loading_bytes

GPT2 = "results/gpt2.tiktoken"
NOTHING = "(?!)"  # a regular expression that matches nothing
TOKENIZER = "tokenizer.json"
PROBE = "probe.safetensors"
SOURCE_DIGEST = "source.digest"  # of the files of data.path that the text was read from
OPTIMIZER = ".optimizer.safetensors"  # end of the names of optimizer states
QUALITY = "results/{run}/exits/{grid}/{criterion}.quality.parquet"
KEPT = ".kept"  # folder of a run with results that reruns restore
REPORT_RESULTS = "results/report/results.json"  # figure -> sentences, written with the first page of the report
MANIFEST = "published.json"  # of a model from the hub, written when its download is complete
RESULTS = "results"
TRAINING_TABLES = ("training", "training_loops")  # that train_segment writes
TRAINING_MB = 16000  # of a training job on a node, at its first attempt
RELEASE_STAGES = ("claims", "released_tables")  # files of rules that released tables need besides those of figures
# Further files of a published model that may name its end of text.
TOKENIZER_SETTINGS = ("tokenizer_config.json", "generation_config.json", CONFIG)


class Runs:
    """The runs of a config: first the selected one, also under further seeds, then `runs`, then the studies.

    With the key `release` those of a release, whose tables take the place of the results of jobs.

    Args:
        config: Snakemake's merged config.
        scripts: Folder of the entry scripts.

    Raises InputError for a config with a wrong key or value.
    """

    def __init__(self, config: Mapping[str, Any], scripts: Path) -> None:
        self.release = _release(config)
        self.configs: dict[str, Config] = (
            configs.runs(config, folder_layer) | configs.studies(config, folder_layer)
            if self.release is None
            else self.release.runs(config)
        )
        self.selected = next(iter(self.configs))
        self.scripts = scripts
        self.figures = list(figures())
        self.before_jobs: Callable[[], None] = lambda: None  # a check that the workflow makes when it has a plan
        self.table_root = RESULTS if self.release is None else releases.FOLDER  # of the tables that are shown
        if self.release is None:
            self._check_files()

    def _check_files(self) -> None:
        """Refuse files of the config that cannot be read, before any job."""
        for run in self.configs.values():
            for exits in run.exit_grids.values():
                criterion_files(exits.criteria)
            _check_folder(run.model.folder)

    def __iter__(self) -> Iterator[str]:
        return iter(self.configs)

    def __getitem__(self, run: str) -> Config:
        return self.configs[run]

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

    @property
    def pattern(self) -> str:
        """Regular expression of all run names, for the constraint of the wildcard `run`."""
        return _alternatives(self.configs)

    @property
    def trained_pattern(self) -> str:
        """Regular expression of the names of runs that are trained here."""
        return _alternatives(run for run, config in self.configs.items() if trains(config))

    def _of(self, wildcards: Any) -> tuple[str, Config]:
        run = getattr(wildcards, "run", self.selected)
        return run, self.configs[run]

    # --- releases ---------------------------------------------------------------------------------------------------

    def includes(self, stage: str) -> bool:
        """Whether the rules of a stage, a file of workflow/rules/, take part. A release needs none that computes."""
        return self.release is None or stage in RELEASE_STAGES

    @property
    def released_tables(self) -> dict[str, str]:
        """Path in the release -> file for each of its tables, except the verdicts, which are judged again."""
        verdicts = f"{self.selected}/tables/claims.parquet"
        return {name: f"{releases.FOLDER}/{name}" for name in self.release.tables if name != verdicts}

    def released_files(self, wildcards: Any) -> str:
        """Param function: size and SHA-256 of each of `released_tables`, as one canonical JSON string."""
        return canonical_json({"files": {name: vars(self.release.tables[name]) for name in self.released_tables}})

    def release_options(self, wildcards: Any) -> str:
        """Param function: where the release is and how it is fetched, as options."""
        download = canonical_json({"download": configs.plain(self.release.download)})
        return shlex.join(["--place", self.release.place, "--download", download])

    def _unreleased(self, files: Iterable[str]) -> str | None:
        """The end of a sentence about files of runs that the release lacks, or None."""
        absent = [] if self.release is None else [file for file in files if file not in self.release.tables]
        return f"is from the release {self.release.place}, which has no {', '.join(absent)}" if absent else None

    # --- text and tokens --------------------------------------------------------------------------------------------

    @property
    def text_shards(self) -> list[str]:
        """Names of the files that the text of a run is split into."""
        return [f"shard_{number:03d}" for number in range(self.config.data.text_shards)]

    def data_run(self, run: str) -> str:
        """The run whose text and tokens `run` trains on: the selected one, unless the data configs differ."""
        return self.selected if _text_identity(self.configs[run]) == _text_identity(self.config) else run

    def data_file(self, name: str) -> Callable:
        """Input function: a file of the text or tokens that the run trains on."""
        return lambda wildcards: f"results/{self.data_run(self._of(wildcards)[0])}/data/{name}"

    def source_digest(self, wildcards: Any) -> str:
        """Param function: digest of the files of data.path; empty for other sources.

        Where the files are gone, as in results that were copied alone, the digest that prepare_text has recorded.
        """
        run, config = self._of(wildcards)
        if config.data.source not in configs.FILE_SOURCES:
            return ""
        record = Path(f"results/{run}/data/{SOURCE_DIGEST}")
        try:
            return source_files.digest(Path(config.data.path), config.data.source)
        except (InputError, OSError):
            return record.read_text().strip() if record.is_file() else ""

    def text_files(self, wildcards: Any) -> list[str]:
        """Input function: the text that the run trains on, one file per shard."""
        return [self.data_file(f"text/{shard}.parquet")(wildcards) for shard in self.text_shards]

    def tokenizer_file(self, wildcards: Any) -> str | list[str]:
        """Input function: the file of the run's tokenizer; empty for bytes, which have none."""
        run, config = self._of(wildcards)
        match config.tokenizer.name:
            case "published":
                return f"{self.model_folder(run)}/{TOKENIZER}"
            case "bpe":
                return self.data_file(TOKENIZER)(wildcards)
            case name:
                return {"gpt2": GPT2, "bytes": []}[name]

    def tokenizer_settings(self, wildcards: Any) -> list[str]:
        """Input function: what the tokens of a published model depend on besides the file of its tokenizer."""
        model = self._of(wildcards)[1].model
        if model.folder is None:
            return self.model_files(wildcards)
        return [str(path) for name in TOKENIZER_SETTINGS if (path := Path(model.folder, name)).is_file()]

    def counting_tokenizer(self, wildcards: Any) -> str | list[str]:
        """Input function: the tokenizer that counts text while it is collected; empty where characters are counted."""
        return GPT2 if self._of(wildcards)[1].tokenizer.name == "gpt2" else []

    @property
    def downloads(self) -> list[str]:
        """Files of all runs that later jobs cannot recreate without a network."""
        files: dict[str, None] = {}
        for run, config in self.configs.items():
            folder = f"results/{self.data_run(run)}/data/text"
            files |= dict.fromkeys(f"{folder}/{shard}.parquet" for shard in self.text_shards)
            files |= {GPT2: None} if config.tokenizer.name == "gpt2" else {}
            files |= {f"{self.model_folder(run)}/{MANIFEST}": None} if config.model.repository is not None else {}
        return list(files)

    # --- published models -------------------------------------------------------------------------------------------

    @cached_property
    def repositories(self) -> dict[str, dict[str, str]]:
        """Name of a folder in results/models -> repository and revision of the hub that it is downloaded from."""
        models = [config.model for config in self.configs.values() if config.model.repository is not None]
        return {
            repository_name(model): {"repository": model.repository, "revision": model.revision} for model in models
        }

    @property
    def repository_pattern(self) -> str:
        """Regular expression of the names of `repositories`."""
        return _alternatives(self.repositories)

    def repository(self, wildcards: Any) -> str:
        """Param function: repository and revision of the wildcard `model`, as JSON."""
        return canonical_json(self.repositories[wildcards.model])

    def model_folder(self, run: str) -> str:
        """The folder with the files of a published model."""
        model = self.configs[run].model
        return model.folder if model.folder is not None else f"results/models/{repository_name(model)}"

    def model_files(self, wildcards: Any) -> list[str]:
        """Input function: the files of a published model besides config.json; empty for a trained one.

        Those of a repository are represented by the manifest of the download, because they are not known before.
        """
        run, config = self._of(wildcards)
        if trains(config):
            return []
        if config.model.folder is None:
            return [f"{self.model_folder(run)}/{MANIFEST}"]
        index = Path(config.model.folder, INDEX)
        files = PublishedFolder(Path(config.model.folder)).weight_files
        return [str(path) for path in ([index] if index.is_file() else []) + files]

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint_iterations(self, run: str) -> list[int]:
        """Iterations of the checkpoints of `run` that training writes, ascending; none for a published model."""
        config = self.configs[run]
        return configs.checkpoint_iterations(config.train) if trains(config) else []

    def iterations(self, run: str) -> list[int]:
        """Iterations of all checkpoints: 0, the untrained or the published model, and those of training."""
        return [0, *self.checkpoint_iterations(run)]

    def checkpoint(self, run: str, iteration: int) -> str:
        """The file that stands for a checkpoint; for a published model, its config.json."""
        if trains(self.configs[run]):
            return f"results/{run}/checkpoints/iteration_{iteration:06d}.safetensors"
        if iteration:
            raise InputError(f"run {run}: no checkpoint at iteration {iteration}, expected 0: the model is published.")
        return f"{self.model_folder(run)}/{CONFIG}"

    def checkpoint_file(self, wildcards: Any) -> str:
        """Input function: the checkpoint at the wildcard `iteration`."""
        return self.checkpoint(wildcards.run, int(wildcards.iteration))

    def release_checkpoints(self, wildcards: Any) -> list[str]:
        """Input function: all checkpoints of the run, the last one last. InputError for a model without a release."""
        run, config = self._of(wildcards)
        check_released(run, config.model)
        return [self.checkpoint(run, iteration) for iteration in self.iterations(run)]

    def previous_iteration(self, run: str, iteration: int) -> int:
        """The iteration that the segment ending at `iteration` starts from. Raises InputError off the schedule."""
        iterations = self.iterations(run)
        if iteration not in iterations[1:]:
            raise InputError(f"run {run}: no checkpoint at iteration {iteration}, expected one of {iterations[1:]}.")
        return iterations[iterations.index(iteration) - 1]

    def last_checkpoint(self, wildcards: Any) -> str:
        """Input function: the last checkpoint of the run."""
        run, _ = self._of(wildcards)
        return self.checkpoint(run, self.iterations(run)[-1])

    def segment_start(self, wildcards: Any) -> list[str]:
        """Input function: the checkpoint that a segment starts from, and its optimizer state unless it is untrained."""
        iteration = self.previous_iteration(wildcards.run, int(wildcards.iteration))
        weights = self.checkpoint(wildcards.run, iteration)
        return [weights, weights.replace(".safetensors", OPTIMIZER)] if iteration else [weights]

    def at_checkpoints(self, pattern: str, untrained: bool = True) -> Callable:
        """Input function: `pattern` with {run} and {iteration} of each checkpoint, iteration 0 included or not."""

        def files(wildcards: Any) -> list[str]:
            run, _ = self._of(wildcards)
            iterations = self.iterations(run) if untrained else self.checkpoint_iterations(run)
            return [pattern.format(run=run, iteration=f"{iteration:06d}") for iteration in iterations]

        return files

    def training_tokens(self, wildcards: Any) -> str | list[str]:
        """Input function: the ids that the run trains on; empty for a published model."""
        return self.data_file("train.bin")(wildcards) if trains(self._of(wildcards)[1]) else []

    @property
    def last_segments(self) -> str:
        """Regular expression of the wildcard `run` that matches only in paths of a run's last checkpoint."""
        folders = "checkpoints|training|logs|benchmarks"
        last = {run: self.checkpoint_iterations(run)[-1] for run, config in self.configs.items() if trains(config)}
        patterns = [rf"{re.escape(run)}(?=/(?:{folders})/\D*{iteration:06d}\.)" for run, iteration in last.items()]
        return "|".join(patterns) or NOTHING

    def last_group(self, wildcards: Any) -> str:
        """The group of jobs that analyse the last checkpoint, as the rules' `analyses_{run}_{iteration}` names it."""
        run, _ = self._of(wildcards)
        return f"analyses_{run}_{self.iterations(run)[-1]:06d}"

    # --- exit criteria ----------------------------------------------------------------------------------------------

    def _exits(self, wildcards: Any, grid: str | None = None) -> ExitsConfig:
        """The criteria and settings on a grid of thresholds, see `CoreConfig.exit_grids`."""
        return self._of(wildcards)[1].exit_grids[grid or wildcards.grid]

    @property
    def criterion_pattern(self) -> str:
        """Regular expression of the names of all criteria, for the constraint of the wildcard `criterion`."""
        used = (exits for config in self.configs.values() for exits in config.exit_grids.values())
        return "|".join(map(re.escape, dict.fromkeys(name for exits in used for name in exits.criteria)))

    def each_criterion(self, pattern: str, grid: str | None = None, of_users: bool = False) -> Callable:
        """Input function: `pattern` with {run}, {grid} and {criterion} of each criterion, or only of users' ones.

        `grid` is a wildcard unless given.
        """

        def files(wildcards: Any) -> list[str]:
            run, _ = self._of(wildcards)
            entries = self._exits(wildcards, grid).criteria.items()
            # sorted, as in the slices of a job
            names = sorted(name for name, entry in entries if entry.file is not None or not of_users)
            return [pattern.format(run=run, grid=grid or wildcards.grid, criterion=name) for name in names]

        return files

    def user_criteria(self, grid: str) -> dict[str, Callable]:
        """Input of a job on a grid: the quality of users' criteria, so that one that fails does so before this job."""
        return {"criteria": self.each_criterion(QUALITY, grid, of_users=True)}

    def probe_file(self, grid: str | None = None) -> Callable:
        """Input function: the fitted probe where the criterion `probe` is measured; empty elsewhere.

        It is about the wildcard `criterion`, or about all criteria of `grid`.
        """

        def file(wildcards: Any) -> str | list[str]:
            run, _ = self._of(wildcards)
            names = [wildcards.criterion] if grid is None else self._exits(wildcards, grid).criteria
            return f"results/{run}/{PROBE}" if "probe" in names else []

        return file

    def exit_threads(self, cores: int | None, grid: str | None = None) -> Callable:
        """Threads of a quality job, so that the jobs of all criteria of a grid share the cores.

        Small tensors gain little from a second thread, and jobs side by side gain all of a second core. `grid` is a
        wildcard unless given.
        """
        return lambda wildcards: max(1, (cores or 1) // len(self._exits(wildcards, grid).criteria))

    # --- params -----------------------------------------------------------------------------------------------------

    def slice(self, *names: str, **derived: Callable[[Config], Any]) -> Callable:
        """Param function: the part of the config that a rule depends on, as one canonical JSON string.

        Args:
            names: Sections or derived values of the config, or "run", "seed", "device".
            derived: Further values, as functions of the Config.

        One string, because Snakemake compares several params as a set.
        """

        def param(wildcards: Any) -> str:
            run, config = self._of(wildcards)
            values = {name: _entry(name, run, config) for name in names}
            return canonical_json(values | {name: _plain(value(config)) for name, value in derived.items()})

        return param

    def exit_slice(
        self,
        grid: str | None = None,
        criterion: str | None = None,
        sections: Sequence[str] = (),
        **derived: Callable[[Config], Any],
    ) -> Callable:
        """Param function: the slice for exit criteria on a grid, with the code of users' criteria.

        `grid` and `criterion` are wildcards unless given; without either of the latter it is about all criteria.
        `sequences` is the number of held-out ones that quality_tokens make. `sections` are further names and `derived`
        further values, as for `slice`.
        """

        def param(wildcards: Any) -> str:
            exits = self._exits(wildcards, grid)
            if (name := criterion or getattr(wildcards, "criterion", None)) is not None:
                exits = exits.model_copy(update={"criteria": {name: exits.criteria[name]}})
            files = criterion_files(exits.criteria)
            names = ("run", "seed", "device", "model", *sections)
            own = {
                "exits": lambda config: exits,
                "criterion_files": lambda config: files,
                "sequences": lambda config: configs.whole_sequences(exits.quality_tokens, config.model.context_length),
            }
            return self.slice(*names, **own | derived)(wildcards)

        return param

    def training_identity(self, wildcards: Any) -> str:
        """Param function: everything that the weights of a run depend on besides its text, as JSON."""
        return canonical_json(configs.training_identity(self._of(wildcards)[1]))

    def runtime(self, wildcards: Any) -> str:
        """Param function: how training is segmented, logged and distributed, as JSON."""
        return canonical_json(configs.runtime(self._of(wildcards)[1]))

    def code(self, script: str, *modules: str) -> str:
        """Param: fingerprint of an entry script, of further modules by dotted name, and of all that they import."""
        return fingerprint(self.scripts / f"{script}.py", *modules)

    def tokenizer_code(self, script: str) -> Callable:
        """Param function: like `code`, with the module that is imported by name for the tokenizer of the run."""
        return lambda wildcards: self.code(script, *configs.modules_of_tokenizer(self._of(wildcards)[1]))

    def torch_code(self, script: str, *modules: str) -> Callable:
        """Param function: like `code`, with the modules that are imported by name for model and tokenizer of the run.

        It also covers the defaults of the optional keys of `model` and `train`, which slices and identities leave out.
        """

        def param(wildcards: Any) -> str:
            config = self._of(wildcards)[1]
            further = configs.modules_of_model(config) + configs.modules_of_tokenizer(config)
            code = self.code(script, *modules, *further)
            return json_digest([code, configs.absent_values(config.model, config.train)])

        return param

    def kept_files(self, code: Callable, config: Callable, tables: str, later: Callable) -> Callable:
        """Param function: `file_options`, and what `twoscale.kept` needs to restore the result of a job; untracked.

        `code`, `config` and `tables` are the tracked params of the job, the result of which depends on nothing else
        but its inputs. `later`: the first outputs of the later segments, in order; where there are any, the optimizer
        state is temporary. It is left out of the inputs, because it is a function of the same as the weights beside it.
        """

        def param(wildcards: Any, input: Any, output: Any) -> str:
            following = later(wildcards)
            temporary = [file for file in output if file.endswith(OPTIMIZER) and following]
            job = {
                "folder": kept_folder(wildcards.run, output[0]),
                "version": json_digest([code(wildcards), config(wildcards), tables]),
                "device": self._of(wildcards)[1].compute.device,
                "inputs": sorted(file for file in input if not file.endswith(OPTIMIZER)),
                "outputs": [file for file in output if file not in temporary],
                "temporary": temporary,
                "later": [kept_folder(wildcards.run, file) for file in following],
            }
            return f"{file_options(wildcards, input, output)} --kept {shlex.quote(canonical_json(job))}"

        return param

    def training_version(self, wildcards: Any) -> str:
        """The version under which `kept_files` keeps a segment of training."""
        code = self.torch_code("train_segment")(wildcards)
        return json_digest([code, self.training_identity(wildcards), table_columns(*TRAINING_TABLES)])

    def later_checkpoints(self, wildcards: Any) -> list[str]:
        """The checkpoints of the run after the wildcard `iteration`."""
        run, iteration = wildcards.run, int(wildcards.iteration)
        return [self.checkpoint(run, later) for later in self.checkpoint_iterations(run) if later > iteration]

    def command(self, script: str, *arguments: str) -> Callable:
        """Param function: the command that starts an entry script. Untracked, because it contains a path."""
        return untracked(lambda wildcards: shlex.join(["python", self._script(script), *arguments]))

    def torch_command(self, script: str, *arguments: str) -> Callable:
        """Like `command`, for a script that uses torch in one process."""

        @untracked
        def param(wildcards: Any) -> str:
            return shlex.join([*self._gpu_lease(self.gpus(wildcards)), "python", self._script(script), *arguments])

        return param

    def training_command(self, script: str) -> Callable:
        """Like `command`, for a script that runs in train.processes processes on train.nodes nodes."""

        @untracked
        def param(wildcards: Any) -> str:
            share = self._node_share(wildcards)
            if share.nodes > 1:  # SLURM assigns their GPUs
                return shlex.join(["python", self._script("with_nodes"), *map(str, share), self._script(script)])
            launcher = ["python"] if share.processes == 1 else torchrun_line(share)
            return shlex.join([*self._gpu_lease(share.gpus), *launcher, self._script(script)])

        return param

    def _script(self, name: str) -> str:
        return str(self.scripts / f"{name}.py")

    def _gpu_lease(self, gpus: int) -> list[str]:
        return ["python", self._script("with_gpus"), str(gpus)] if gpus else []

    # --- resources --------------------------------------------------------------------------------------------------

    def checked(self, function: Callable) -> Callable:
        """Resource function with the value of `function`, a function of the wildcards, after the check of the plan.

        Snakemake has no hook between planning and the first job that a dry run calls too. It evaluates resources only
        of jobs that run.
        """

        def resource(wildcards: Any) -> Any:
            self.before_jobs()
            return function(wildcards)

        return resource

    def gpus(self, wildcards: Any) -> int:
        """Resource function: GPUs of a job that uses torch."""
        return int(self._of(wildcards)[1].compute.device == "cuda")

    def training_gpus(self, wildcards: Any) -> int:
        """Resource function: GPUs of a training job, one per process."""
        return self.gpus(wildcards) * self._of(wildcards)[1].train.processes

    def requested_gpus(self, wildcards: Any) -> int:
        """Resource function: GPUs of a training job on one node; `node_resources` has those of several."""
        return self.training_gpus(wildcards) if self._of(wildcards)[1].train.nodes == 1 else 0

    def training_threads(self, wildcards: Any) -> int:
        """Threads of a training job on each node, all its processes together."""
        train = self._of(wildcards)[1].train
        return train.cpu_threads * train.processes // train.nodes

    def training_cpus(self, wildcards: Any) -> int:
        """Resource function: CPUs of a training job on each node; four per GPU at least, to prefetch and to compile."""
        nodes = self._of(wildcards)[1].train.nodes
        return max(self.training_threads(wildcards), 4 * self.training_gpus(wildcards) // nodes)

    def training_memory(self, wildcards: Any, attempt: int) -> int:
        """Resource function: MB of a training job on each node, with those for loading a model that is divided."""
        config = self._of(wildcards)[1]
        loaded = loading_bytes(config) // 10**6 if config.train.shard else 0
        return (TRAINING_MB + loaded) * attempt

    def _node_share(self, wildcards: Any) -> Share:
        train = self._of(wildcards)[1].train
        gpus = self.training_gpus(wildcards) // train.nodes
        return Share(train.nodes, train.processes // train.nodes, self.training_cpus(wildcards), gpus)

    def node_resources(self) -> dict[str, Callable]:
        """Resources that Snakemake's SLURM executor takes for a job on several nodes; unset for a job on one.

        `mpi`: the job itself calls srun. `tasks_per_gpu` keeps the executor from a number of tasks of its own.
        `gres`: GPUs of each node, in place of `gpu`, those of the job, which SLURM may distribute unevenly.
        """

        def on_several(value: Callable[[Share], Any]) -> Callable:
            def resource(wildcards: Any) -> Any:
                share = self._node_share(wildcards)
                return value(share) if share.nodes > 1 else None

            return resource

        return {
            "nodes": on_several(lambda share: share.nodes),
            "tasks": on_several(lambda share: share.nodes),
            "mpi": on_several(lambda share: "srun"),
            "tasks_per_gpu": on_several(lambda share: 0),
            "gres": on_several(lambda share: f"gpu:{share.gpus}" if share.gpus else None),
        }

    def torch_job(self, section: str, memory: int, minutes: int, **further: Any) -> dict[str, Any]:
        """Resources of a job that opens a checkpoint in the dtype of a section: MB and minutes of the first attempt.

        `memory` is for everything but the weights of a published model.
        """

        def mem_mb(wildcards: Any, attempt: int) -> int:
            config = self._of(wildcards)[1]
            return (memory + (0 if trains(config) else weight_mb(config, section))) * attempt

        return {
            "mem_mb": mem_mb,
            "runtime": growing(minutes),
            "gpu": self.checked(self.gpus),
            "gpu_slot": self.gpus,
            **further,
        }

    # --- jobs of studies --------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> list[Job]:
        """The rows of all studies, with the name of the selected run in their outputs."""
        rows = [job for part in study_parts("study").values() for job in getattr(part, "JOBS", ())]
        return [replace(job, outputs=self._selected_in(job.outputs)) for job in rows]

    def _selected_in(self, paths: Mapping[str, str]) -> dict[str, str]:
        return {name: path.replace("{selected}", self.selected) for name, path in paths.items()}

    def job_inputs(self, job: Job) -> dict[str, Any]:
        """The inputs of a row: its own, and for a measurement a checkpoint, its files and held-out text."""
        if not isinstance(job, Measurement):
            return dict(job.inputs(self))
        each = any("{iteration}" in path for path in job.outputs.values())
        checkpoint = self.checkpoint_file if each else self.last_checkpoint
        text = {"val": self.data_file("val.bin"), "metadata": self.data_file("tokens.json")}
        return {"checkpoint": checkpoint, **text, "model": self.model_files, **job.inputs(self)}

    def job_runs(self, job: Measurement) -> str:
        """Regular expression of the runs that have the outputs of a measurement."""
        return self.trained_pattern if job.trained else self.pattern

    @property
    def study_targets(self) -> list[str]:
        """Names of the target rules of studies, besides "supplementary"."""
        of_figures = (figure.target for figure in self.figures if figure.target not in ("all", "supplementary"))
        of_pages = (job.target for job in self.jobs if isinstance(job, Comparison) and job.target)
        return list(dict.fromkeys([*of_figures, *of_pages]))

    def target_files(self, target: str) -> list[str]:
        """Figures and pages of a target rule. Those that the selected run does not have are refused by their rules."""
        figures = [f"results/{figure.name}.pdf" for figure in self.figures if figure.target == target]
        pages = [job.outputs["page"] for job in self.jobs if isinstance(job, Comparison) and job.target == target]
        return figures + pages

    # --- figures and report -----------------------------------------------------------------------------------------

    def figure_runs(self, figure: Figure) -> list[str]:
        """The runs whose tables a figure reads."""
        return [self.selected] if figure.compared else self._shown_runs(figure)

    def _shown_runs(self, figure: Figure) -> list[str]:
        """The runs that a figure shows; its config is that of the first of them."""
        if figure.seed_band and self.config.figures.seed_band:
            return self.study("seeds")
        return (self.study(figure.study) if figure.study else []) or [self.selected]

    def figure_inputs(self, figure: Figure) -> dict[str, Any]:
        """Input files of a figure by the name of the table in them, one file per run.

        For a figure that the selected run does not have: an input function that says why.
        """
        shown = self.figure_runs(figure)
        refuse = self._refusal(figure, f"results/{figure.name}.pdf")
        root = self.table_root
        return {name: refuse or [f"{root}/{run}/{file}" for run in shown] for name, file in figure.inputs.items()}

    def _problem(self, figure: Figure) -> str | None:
        """Why the selected run does not have the figure: the end of a sentence, or None."""
        return figure.problem(self.config) or self._unreleased(
            f"{run}/{file}" for run in self.figure_runs(figure) for file in figure.inputs.values()
        )

    def _refusal(self, figure: Figure, output: str) -> Callable | None:
        """Input function of an output that shows what a figure shows: raises InputError. None if the run has it."""
        problem = self._problem(figure)

        def refuse(wildcards: Any) -> list[str]:
            raise InputError(f"{output}: run {self.selected} {problem}.")

        return refuse if problem else None

    def study_tables(self, study: str, table: str) -> list[str] | Callable:
        """A table of every run of a study, the figure of which has the same name.

        For a study that the selected run does not have: an input function that says why.
        """
        figure = next(figure for figure in self.figures if figure.name == study)
        tables_of_runs = [f"results/{run}/tables/{table}.parquet" for run in self.study(study)]
        return self._refusal(figure, f"results/{study}.md") or tables_of_runs

    def page_tables(self, name: str, *names: str, **files: str) -> dict[str, Any]:
        """Inputs of the page results/<name>.md, by the name of the table: `names` and `files` as for `catalogue.table`.

        For a run that does not have the figure of the same name: an input function that says why.
        """
        figure = next(figure for figure in self.figures if figure.name == name)
        refuse = self._refusal(figure, f"results/{name}.md")
        of_run = table(*names, **files).items()
        return {name: refuse or f"results/{self.selected}/{file}" for name, file in of_run}

    def figure_slice(self, figure: Figure) -> Callable:
        """Param function: what a figure shows besides its tables, as one canonical JSON string.

        A function, because Snakemake takes braces in a plain string for a wildcard.
        """

        def param(wildcards: Any) -> str:
            config = self.configs[self._shown_runs(figure)[0]]
            names = {
                "run": self.selected,
                "runs": self.figure_runs(figure),
                "text": configs.text_label(self.config.data),
            }
            names |= {"published": not trains(config)}
            return canonical_json(names | {"loops": figure.loops(config), "values": figure.values(config)})

        return param

    def figure_files(self, target: str) -> list[str]:
        """The files of a target rule: those of its figures that the selected run has."""
        shown = (figure for figure in self.figures if figure.target == target and not self._problem(figure))
        return [f"results/{figure.name}.pdf" for figure in shown]

    def at_seeds(self, table: str) -> Callable:
        """Input function: a table of the selected run under every seed. InputError for a run with one seed."""

        def files(wildcards: Any) -> list[str]:
            if (problem := one_seed(self.config)) is not None:
                raise InputError(f"results/seeds.md: run {self.selected} {problem}.")
            if not self.claims:
                raise InputError(f"results/seeds.md: run {self.selected} has no looped groups, expected at least 1.")
            return [f"results/{run}/tables/{table}.parquet" for run in self.study("seeds")]

        return files

    @property
    def report_figures(self) -> list[Figure]:
        """The figures of the report: those of the paper, and others whose tables were computed for the selected run."""
        figures = [figure for figure in self.figures if not self._problem(figure)]
        return [figure for figure in figures if figure.target == "all" or self._has_tables(figure)]

    def _has_tables(self, figure: Figure) -> bool:
        return all(Path(file).exists() for files in self.figure_inputs(figure).values() for file in files)

    def report_pictures(self, wildcards: Any) -> list[str]:
        """Input function: the pictures of `report_figures`."""
        return [f"results/{figure.name}.svg" for figure in self.report_figures]

    @property
    def reported(self) -> dict[str, str]:
        """Figure -> dotted path of its function `sentence`, for the figures that have one."""
        return {figure.name: figure.sentence for figure in self.figures if figure.sentence}

    @property
    def report_pages(self) -> list[str]:
        """Pages of studies that the report has."""
        return [job.outputs["page"] for job in self.jobs if isinstance(job, Comparison) and job.report]

    def report_table(self, figure: str) -> Callable:
        """Input function: the table in the file tables/<figure>.parquet if the report has this figure."""
        shown = [self.table_file(figure)]
        return lambda wildcards: shown if figure in [figure.name for figure in self.report_figures] else []

    def if_computed(self, table: str) -> dict[str, Callable]:
        """Params of a job that reads a table of the selected run where it exists, and never has it computed.

        `files` is `file_options` with the table; `computed` is its SHA-256, so the job runs again after a change.
        """
        path = Path(self.table_file(table))

        def digest() -> str:
            if self.release is not None:  # fetched together with the inputs of the job
                released = self.release.tables.get(f"{self.selected}/tables/{table}.parquet")
                return "" if released is None else released.sha256
            return sha256(path) if path.is_file() else ""

        def files(wildcards: Any, input: Any, output: Any) -> str:
            option = f" --{table} {shlex.quote(str(path))}" if digest() else ""
            return file_options(wildcards, input, output) + option

        return {"files": files, "computed": lambda wildcards: digest()}

    def table_file(self, table: str) -> str:
        """The file of a table of the selected run that figures and claims read."""
        return f"{self.table_root}/{self.selected}/tables/{table}.parquet"

    def overview_slice(self, wildcards: Any) -> str:
        """Param function: what the first page of the report shows besides tables, as one canonical JSON string."""
        figures = [
            {"name": figure.name, "title": figure.label, "claims": figure.claims, "sentence": figure.sentence}
            for figure in self.report_figures
        ]
        names = {"run": self.selected, "text": configs.text_label(self.config.data), "report_figures": figures}
        return canonical_json(names | {"reference_state": self.config.figures.dlr_reference_state})

    def results(self, wildcards: Any) -> list[str]:
        """Input function: the figures of the paper and the claims."""
        return self.figure_files("all") + self.claims

    def snapshot_files(self, wildcards: Any) -> list[str]:
        """Input function: claims, the figures of the report and of training, and the tables of all of them.

        InputError for a published model.
        """
        if not trains(self.config):
            raise InputError(f"results/snapshot: run {self.selected} has a published model, expected one trained here.")
        shown = (figure for figure in self.figures if not self._problem(figure))
        figures = snapshot_figures(shown, self.report_figures)
        pictures = [f"results/{figure.name}.svg" for figure in figures]
        shown = [file for figure in figures for files in self.figure_inputs(figure).values() for file in files]
        judged = ["claims", *tables.CLAIM_TABLES.values()] if self.claims else []
        return list(dict.fromkeys([*self.claims, *map(self.table_file, judged), *pictures, *shown]))

    def caption(self, figure: Figure | None = None) -> Callable:
        """Param function: values for the caption of a figure or of a page of the report. Untracked."""
        values = report_values(self.selected, self.config)
        if figure is not None:
            values |= caption_values(figure, self.configs[self._shown_runs(figure)[0]])

        @untracked
        def param(wildcards: Any) -> Caption:
            results = caption_results(figure.name) if figure is not None else ""
            return Caption(values | {"held_out": self.near_duplicates()}, results)

        return param

    def near_duplicates(self) -> dict[str, Any] | None:
        """Held-out documents that were examined and dropped, from the selected run's tokens.json once it exists.

        None for a published model: its training text is not here.
        """
        if not trains(self.config):
            return None
        try:
            metadata = json.loads(Path(f"results/{self.data_run(self.selected)}/data/tokens.json").read_text())
            return metadata["parts"]["val.bin"]["near_duplicates"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    @property
    def claims(self) -> list[str]:
        """The page of the claims, which are about loops: empty for a model without groups, or without their tables."""
        absent = self._unreleased(f"{self.selected}/tables/{table}.parquet" for table in tables.CLAIM_TABLES.values())
        return ["results/claims.md"] if self.config.model.groups and not absent else []


class Caption(dict):
    """The values of a caption, in which reStructuredText has no markup of strings, except in `results`.

    The report prints the params of a job beside its caption, which quotes these values.
    """

    def __init__(self, values: Mapping[str, Any], results: str = "") -> None:
        super().__init__({name: _without_markup(value) for name, value in values.items()}, results=results)

    def __str__(self) -> str:
        return "(see the description)"


def caption_results(figure: str) -> str:
    """The results of a figure for its caption, as a list in reStructuredText; empty if there are none yet."""
    try:
        sentences = json.loads(Path(REPORT_RESULTS).read_text(encoding="utf-8"))[figure]
    except (OSError, ValueError, LookupError):
        return ""
    if not sentences:
        return ""
    items = [f"- {rst(sentence)}" for sentence in sentences]
    return "\n".join(["**Results**, with 95 % intervals in brackets:", "", *items])


def _without_markup(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_markup(entry) for name, entry in value.items()}
    return rst(value) if isinstance(value, str) else value


def _release(config: Mapping[str, Any]) -> releases.Release | None:
    """The release that the config names, if it names one. Raises InputError."""
    if config.get("release") is None:
        return None
    download = build(DownloadConfig, config.get("download") or {}, "download")
    return releases.Release.open(config["release"], download)


def trains(config: Config) -> bool:
    """Whether the weights of a run are trained here."""
    return config.model.source == "trained"


def repository_name(model: ModelConfig) -> str:
    """Name of the folder that a published model is downloaded to."""
    return f"{model.repository.replace('/', '--')}--{model.revision[:12]}"


def weight_mb(config: Config, section: str) -> int:
    """Megabytes of the weights in the dtype of a section."""
    return parameters(config.model) * BYTES[getattr(config, section).dtype] // 10**6


def _text_identity(config: Config) -> tuple[Any, ...]:
    """What the text and the tokens of a run depend on."""
    model = config.model
    own = (model.repository, model.revision, model.folder) if config.tokenizer.name == "published" else None
    return config.data, config.tokenizer, own


def _alternatives(names: Iterable[str]) -> str:
    """Regular expression that matches these names literally, and nothing else."""
    return "|".join(map(re.escape, names)) or NOTHING


def _entry(name: str, run: str, config: Config) -> Any:
    """A value of a config slice."""
    match name:
        case "run":
            return run
        case "device":
            return config.compute.device
        case _:
            return _plain(getattr(config, name))


def _plain(value: Any) -> Any:
    return configs.plain(value) if isinstance(value, BaseModel) else value


def criterion_files(criteria: Mapping[str, CriterionConfig]) -> dict[str, str]:
    """Fingerprints of the users' files among exit criteria. Raises InputError for one without its class."""
    return {
        name: criterion_file_fingerprint(entry.file, entry.class_name)
        for name, entry in criteria.items()
        if entry.file is not None
    }


def _check_folder(folder: str | None) -> None:
    """Refuse a folder of input files that Snakemake would take for a pattern."""
    if folder is not None and {"{", "}"} & set(folder):
        raise InputError(
            f"config key model.folder: found {folder}, expected a path without braces, which are wildcards in the "
            "names of input files."
        )


def kept_folder(run: str, output: str) -> str:
    """The folder that keeps the result of a job, named after its first output.

    With a storage plugin an output is a local copy, the path of which only ends like that of the result.
    """
    name = output.rpartition(f"results/{run}/")[2]
    return str(Path("results", run, KEPT, name).with_suffix(""))


def table_columns(*names: str) -> str:
    """Param: the columns of the tables that a rule writes, and the type of measures, as one canonical JSON string."""
    measures = {name: {"": tables.MEASURE_TYPE} if name in tables.MEASURED else {} for name in names}
    return canonical_json({name: tables.columns(name) | measures[name] for name in names})


def growing(amount: int) -> Callable:
    """Resource function: `amount` times the number of the attempt, for jobs that may have failed for lack of it."""
    return lambda wildcards, attempt: amount * attempt


def untracked(function: Callable) -> Callable:
    """Param function with the value of `function`, a function of the wildcards, that never causes a rerun.

    Snakemake does not record a param that is computed from `output`, because a change of the output is visible anyway.
    """

    def param(wildcards: Any, output: Any) -> Any:
        return function(wildcards)

    return param


def file_options(wildcards: Any, input: Any, output: Any) -> str:
    """Param function: every named input and output of a job as an option, ``--name PATH ...``; untracked.

    Underscores become dashes. Inputs and outputs without a name or without files are left out.
    """
    return " ".join(
        shlex.join([f"--{name.replace('_', '-')}", *([files] if isinstance(files, str) else files)])
        for name, files in [*input.items(), *output.items()]
        if files
    )
