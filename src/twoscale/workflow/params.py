"""What jobs are given: slices of the config, the fingerprint of their code, commands, processors,
memory and time.

Everything that matters for a result is tracked; what does not, a path, a launcher, a download, is
`untracked`.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, canonical_json, json_digest
from twoscale.config import Config, CriterionConfig
from twoscale.data.text import digest_files
from twoscale.jobs import worker
from twoscale.jobs.fingerprint import criterion_file_fingerprint, fingerprint
from twoscale.jobs.machine import NodeResources
from twoscale.model.flops import BYTES, parameters
from twoscale.workflow.memory import loading_bytes, training_bytes

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

SOURCE_DIGEST = "source.digest"  # of the files of data.path that the text was read from
RESULT_CACHE = ".result_cache"  # folder of a run with results that reruns restore
OPTIMIZER = ".optimizer.safetensors"  # end of the names of optimizer states
TRAINING_MB = 16000  # of a training job on a node with GPUs, at its first attempt
ANALYSIS_MB = 8000  # of a job that opens a checkpoint, besides the weights of a published model
LIBRARIES_MB = 1500  # of Python and torch
SMALL = 20_000_000  # parameters; jobs on such a model ask for half


@dataclass(frozen=True)
class Params:
    """The params and resources of jobs. Where nothing else is said, a method is such a function or
    makes one.

    Attributes:
        runs: The runs of the config.
        scripts: Folder of the entry scripts.
    """

    runs: "Runs"
    scripts: Path

    # --- slices of the config ---------------------------------------------------------------------

    def slice(self, *names: str, **derived: Callable[[Config], Any]) -> Callable:
        """The part of the config that a rule depends on, as one canonical JSON string.

        Args:
            names: Sections or derived values of the config, or "run", "seed", "device".
            derived: Further values, as functions of the Config.

        One string, because Snakemake compares several params as a set.
        """

        def param(wildcards: Any) -> str:
            run, config = self.runs.of(wildcards)
            own = {"run": run, "device": config.compute.device}
            values = {name: own[name] if name in own else getattr(config, name) for name in names}
            values |= {name: value(config) for name, value in derived.items()}
            plain = {
                n: configs.plain(v) if isinstance(v, BaseModel) else v for n, v in values.items()
            }
            return canonical_json(plain)

        return param

    def exit_slice(self, grid: str | None = None, **derived: Callable[[Config], Any]) -> Callable:
        """The slice for exit criteria on a grid, a wildcard unless given, with the code of users'
        criteria.

        It is about the wildcard `criterion`, or else about all. `sequences` is the number of
        held-out ones that quality_tokens make. `derived` are further values, as for `slice`.
        """

        def param(wildcards: Any) -> str:
            exits = self.runs.exits(wildcards, grid)
            if (name := getattr(wildcards, "criterion", None)) is not None:
                exits = exits.model_copy(update={"criteria": {name: exits.criteria[name]}})
            files = criterion_files(exits.criteria)
            own = {
                "exits": lambda config: exits,
                "criterion_files": lambda config: files,
                "sequences": lambda config: configs.whole_sequences(
                    exits.quality_tokens, config.model.context_length
                ),
            }
            return self.slice("run", "seed", "device", "model", **own | derived)(wildcards)

        return param

    def training_identity(self, wildcards: Any) -> str:
        """Everything that the weights of a run depend on besides its text, as JSON."""
        return canonical_json(configs.training_identity(self.runs.of(wildcards)[1]))

    # --- files that are no inputs of Snakemake ----------------------------------------------------

    def source_digest(self, wildcards: Any) -> str:
        """Digest of the files of data.path, or, where they are gone, as prepare_text recorded it;
        empty otherwise.
        """
        run, config = self.runs.of(wildcards)
        if config.data.source not in configs.FILE_SOURCES:
            return ""
        record = Path(f"results/{run}/data/{SOURCE_DIGEST}")
        try:
            assert config.data.path is not None
            return digest_files(Path(config.data.path), config.data.source)
        except (InputError, OSError):
            if (
                not record.is_file()
                and not Path(f"results/{run}/data/text/shard_000.parquet").exists()
            ):
                raise  # now, not in the first job
            return record.read_text().strip() if record.is_file() else ""

    def record_source(self, wildcards: Any, output: Any) -> str:
        """End of the command of prepare_text, which writes `source_digest` to a file; empty without
        one. Untracked.
        """
        digest = self.source_digest(wildcards)
        record = Path(output[0]).parents[1] / SOURCE_DIGEST
        return f" && echo {digest} > {shlex.quote(str(record))}" if digest else ""

    # --- code -------------------------------------------------------------------------------------

    def code(self, script: str, *modules: str) -> str:
        """Param: fingerprint of an entry script, of further modules by dotted name, and of all that
        they import.
        """
        return fingerprint(self.scripts / f"{script}.py", *modules)

    def torch_code(self, script: str, *modules: str) -> Callable:
        """Like `code`, with the modules that are imported by name for the model of the run, and
        with the defaults of the optional keys of `model` and `train`, which slices and identities
        leave out.
        """

        def param(wildcards: Any) -> str:
            config = self.runs.of(wildcards)[1]
            code = self.code(script, *modules, *configs.modules_of_model(config))
            return json_digest([code, configs.absent_values(config.model, config.train)])

        return param

    # --- jobs of scripts --------------------------------------------------------------------------

    def script(self, name: str, *arguments: str, modules: Sequence[str] = ()) -> dict[str, Any]:
        """Params of a job of scripts/<name>.py, which imports `modules` by name: command, files,
        and tracked code.
        """
        command = untracked(
            lambda wildcards: shlex.join(["python", self._script(name), *arguments])
        )
        return {
            "command": command,
            "files": file_options,
            "code": lambda wildcards: self.code(name, *modules),
        }

    def call(
        self,
        function: str,
        tables: Sequence[str] = (),
        config: Callable | None = None,
        modules: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Params of a job of scripts/call.py, which calls the function with this dotted path on
        files.

        `tables` are those that it writes, `config` is the param function of its slice, by default
        the name of the run, and `modules` are those that the function imports by name.
        """
        params = self.script("call", function, modules=[module_of(function), *modules])
        return params | {"config": config or self.slice("run"), "tables": table_columns(*tables)}

    def measure(self, function: str, tables: Sequence[str], config: Callable) -> dict[str, Any]:
        """Params of a job of scripts/measure.py, which calls the function with this dotted path on
        a checkpoint.

        `tables` are those that it writes, and `config` is the param function of its slice. A rerun
        restores its result.
        """
        return self.cached_script("measure", config, *tables, function=function)

    def cached_script(
        self,
        name: str,
        config: Callable,
        *written: str,
        function: str | None = None,
        later: Callable = lambda wildcards: [],
    ) -> dict[str, Any]:
        """Params of a job with torch, of which a rerun restores the result; see `cache_files`.

        `config` is the param function of its slice, `written` are its tables, `function` is the
        dotted path of the function that the script calls.
        """
        arguments, modules = ([function], [module_of(function)]) if function else ([], [])
        code, columns = self.torch_code(name, *modules), table_columns(*written)
        files = self.cache_files(code, config, columns, later)
        command = self.torch_command(name, *arguments)
        return {
            "command": command,
            "files": files,
            "code": code,
            "config": config,
            "tables": columns,
        }

    def torch_command(self, script: str, *arguments: str) -> Callable:
        """The command that starts an entry script with torch in one process."""
        call = ["python", self._script(script), *arguments]
        return untracked(lambda wildcards: shlex.join([*self._lease(self.gpus(wildcards)), *call]))

    def training_command(self, script: str) -> Callable:
        """The command that starts an entry script in train.processes processes on train.nodes
        nodes.
        """

        @untracked
        def param(wildcards: Any) -> str:
            share = self.node_share(wildcards)
            lease = (
                self._lease(share.gpus) if share.nodes == 1 else []
            )  # SLURM assigns the GPUs of several nodes
            together = share.nodes * share.processes > 1
            launcher = [self._script("with_nodes"), *map(str, share)] if together else []
            return shlex.join([*lease, "python", *launcher, self._script(script)])

        return param

    def _script(self, name: str) -> str:
        return str(self.scripts / f"{name}.py")

    def _lease(self, gpus: int) -> list[str]:
        return (
            ["python", self._script("with_gpus"), str(gpus)]
            if gpus or worker.ADDRESS in os.environ
            else []
        )

    def cache_files(
        self, code: Callable, config: Callable, columns: str, later: Callable
    ) -> Callable:
        """`file_options`, and what `twoscale.jobs.result_cache` needs to restore the result of a
        job; untracked.

        `code`, `config` and `columns` are the tracked params of the job, the result of which
        depends on nothing else but its inputs. `later`: the first outputs of the later segments, in
        order; where there are any, the optimizer state is temporary. It is left out of the inputs,
        because it is a function of the same as its weights.
        """

        def param(wildcards: Any, input: Any, output: Any) -> str:
            following = later(wildcards)
            temporary = [file for file in output if file.endswith(OPTIMIZER) and following]
            job = {
                "folder": _cache_folder(wildcards.run, output[0]),
                "version": json_digest([code(wildcards), config(wildcards), columns]),
                "device": self.runs.of(wildcards)[1].compute.device,
                "inputs": sorted(file for file in input if not file.endswith(OPTIMIZER)),
                "outputs": [file for file in output if file not in temporary],
                "temporary": temporary,
                "later": [_cache_folder(wildcards.run, file) for file in following],
            }
            return (
                f"{file_options(wildcards, input, output)} --result-cache"
                f" {shlex.quote(canonical_json(job))}"
            )

        return param

    # --- resources --------------------------------------------------------------------------------

    def gpus(self, wildcards: Any) -> int:
        return int(self.runs.of(wildcards)[1].compute.device == "cuda")

    def exit_threads(self, cores: int | None) -> Callable:
        """Threads of a quality job: those of all criteria share the cores; small tensors gain
        little from a second.
        """
        return lambda wildcards: max(1, (cores or 1) // len(self.runs.exits(wildcards).criteria))

    def last_group(self, wildcards: Any) -> str:
        """The group of jobs that analyse the last checkpoint, as the rules'
        `analyses_{run}_{iteration}` names it.
        """
        run, _ = self.runs.of(wildcards)
        return f"analyses_{run}_{self.runs.iterations(run)[-1]:06d}"

    def torch_job(self, section: str, minutes: int = 60, cpus: int = 1) -> dict[str, Any]:
        """Resources of a job that opens a checkpoint in the dtype of a section, at the first
        attempt.

        A job on a small model asks for half of the memory, one on a published model for that of its
        weights, too. `threads` is limited by the cores of the machine that runs Snakemake; a
        cluster job requests `cpus`.
        """

        def mem_mb(wildcards: Any, attempt: int) -> int:
            config = self.runs.of(wildcards)[1]
            weights = parameters(config.model)
            if trains(config):
                return (ANALYSIS_MB // 2 if weights < SMALL else ANALYSIS_MB) * attempt
            return (
                ANALYSIS_MB + weights * BYTES[getattr(config, section).dtype] // 10**6
            ) * attempt

        return {
            "mem_mb": mem_mb,
            "runtime": growing(minutes),
            "gpu": self.gpus,
            "gpu_slot": self.gpus,
            "cpus_per_task": cpus,
        }

    def training_gpus(self, wildcards: Any) -> int:
        return self.gpus(wildcards) * self.runs.of(wildcards)[1].train.processes

    def training_threads(self, wildcards: Any) -> int:
        """Threads of all processes on a node."""
        train = self.runs.of(wildcards)[1].train
        return train.cpu_threads * train.processes // train.nodes

    def node_share(self, wildcards: Any) -> NodeResources:
        """What each node of a training job has; CPUs: four per GPU at least, to prefetch and to
        compile.
        """
        train = self.runs.of(wildcards)[1].train
        gpus = self.training_gpus(wildcards)
        cpus = max(self.training_threads(wildcards), 4 * gpus // train.nodes)
        return NodeResources(train.nodes, train.processes // train.nodes, cpus, gpus // train.nodes)

    def training_memory(self, wildcards: Any, attempt: int) -> int:
        config = self.runs.of(wildcards)[1]
        loaded = loading_bytes(config) // 10**6 if config.train.shard else 0
        on_cpu = (
            LIBRARIES_MB * config.train.processes // config.train.nodes
            + training_bytes(config) // 10**6
        )
        return ((on_cpu if config.compute.device == "cpu" else TRAINING_MB) + loaded) * attempt

    def training_job(self) -> dict[str, Callable]:
        """Processors and GPUs of a training job on one node, and for several what Snakemake's SLURM
        executor takes.

        `cpus_per_task`: Snakemake limits `threads` to the cores of its machine, but not this.
        `mpi`: the job itself calls srun. `tasks_per_gpu` keeps the executor from a number of tasks
        of its own. `gres`: GPUs of each node, in place of `gpu`, those of the job, which SLURM may
        distribute unevenly.
        """

        def on_several(value: Callable[[NodeResources], Any]) -> Callable:
            return lambda wildcards: (
                value(share) if (share := self.node_share(wildcards)).nodes > 1 else None
            )

        return {
            "nodes": on_several(lambda share: share.nodes),
            "tasks": on_several(lambda share: share.nodes),
            "mpi": on_several(lambda share: "srun"),
            "tasks_per_gpu": on_several(lambda share: 0),
            "gres": on_several(lambda share: f"gpu:{share.gpus}" if share.gpus else None),
            "cpus_per_task": lambda wildcards: self.node_share(wildcards).cpus,
            "gpu": lambda wildcards: (
                self.training_gpus(wildcards) if self.node_share(wildcards).nodes == 1 else 0
            ),
            "gpu_slot": self.training_gpus,
        }


def trains(config: Config) -> bool:
    """Whether the weights of a run are trained here."""
    return config.model.source == "trained"


def growing(amount: int) -> Callable:
    """`amount` times the number of the attempt, for jobs that may have failed for lack of it."""
    return lambda wildcards, attempt: amount * attempt


def module_of(function: str) -> str:
    """The module of the function with this dotted path."""
    return function.rpartition(".")[0]


def _cache_folder(run: str, output: str) -> str:
    """The folder that keeps the result of a job, named after its first output."""
    name = output.removeprefix(f"results/{run}/")
    return str(Path("results", run, RESULT_CACHE, name).with_suffix(""))


def criterion_files(criteria: Mapping[str, CriterionConfig]) -> dict[str, str]:
    """Fingerprints of the users' files among exit criteria."""
    return {
        name: criterion_file_fingerprint(entry.file, entry.class_name)
        for name, entry in criteria.items()
        if entry.file is not None and entry.class_name is not None
    }


def table_columns(*names: str) -> str:
    """Param: the columns of the tables that a rule writes, and the type of measures, as one
    canonical JSON string.
    """
    measures = {
        name: {"": tables.MEASURE_TYPE} if name in tables.MEASURED else {} for name in names
    }
    return canonical_json({name: tables.columns(name) | measures[name] for name in names})


def untracked(function: Callable) -> Callable:
    """Param function with the value of `function`, a function of the wildcards, that never causes a
    rerun.

    Snakemake does not record a param that is computed from `output`, because a change of the output
    is visible anyway.
    """

    def param(wildcards: Any, output: Any) -> Any:
        return function(wildcards)

    return param


def file_options(wildcards: Any, input: Any, output: Any) -> str:
    """Param function: every named input and output of a job as an option, ``--name PATH ...``;
    untracked.

    Underscores become dashes. Inputs and outputs without a name or without files are left out.
    """
    return " ".join(
        shlex.join([f"--{name.replace('_', '-')}", *([files] if isinstance(files, str) else files)])
        for name, files in [*input.items(), *output.items()]
        if files
    )
