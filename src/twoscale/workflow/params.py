"""Params of jobs: the config that a job depends on, the fingerprint of its code, its command.

Everything that matters for a result is tracked: a change reruns the job. Everything else, such as
paths, launchers and downloads, is `untracked`.
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, canonical_json, json_digest
from twoscale.config import Config, CriterionConfig
from twoscale.data.text import digest_files
from twoscale.jobs.fingerprint import criterion_file_fingerprint, fingerprint

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

JOB_FILES = Path(".snakemake/twoscale/jobs")
SOURCE_DIGEST = "source.digest"  # of the files of data.path that the text was read from
OPTIMIZER = ".optimizer.safetensors"  # end of the names of optimizer states


@dataclass(frozen=True)
class Params:
    """Params of jobs. Unless noted, methods are param functions or return one.

    Attributes:
        runs: The runs of the config.
        scripts: Folder of the entry scripts.
    """

    runs: "Runs"
    scripts: Path

    # --- the config -------------------------------------------------------------------------------

    def config_json(self, *names: str, **derived: Callable[[Config], Any]) -> Callable:
        """The part of the config that a rule depends on, as one canonical JSON string.

        Args:
            names: Sections or derived values of the config, or "run", "seed", "device".
            derived: Further values, as functions of the Config.

        One string, because Snakemake compares several params as a set.
        """

        @cache
        def of_run(run: str) -> str:
            config = self.runs[run]
            named = {"run": run, "device": config.compute.device}
            values = {
                name: named[name] if name in named else getattr(config, name) for name in names
            }
            values |= {name: value(config) for name, value in derived.items()}
            for name, value in values.items():
                if isinstance(value, BaseModel):
                    values[name] = configs.plain(value)
            return canonical_json(values)

        return lambda wildcards: of_run(self.runs.of(wildcards)[0])

    def exit_config(self, grid: str | None = None, **derived: Callable[[Config], Any]) -> Callable:
        """`config_json` of a job on exit criteria, with the code of users' criteria.

        `grid` is a wildcard unless given. With the wildcard `criterion` the job is about that
        criterion only. `sequences` is the number of held-out sequences in quality_tokens.
        """

        def param(wildcards: Any) -> str:
            exits = self.runs.exits(wildcards, grid)
            if (name := getattr(wildcards, "criterion", None)) is not None:
                # so a change of one criterion reruns the jobs of that criterion only
                exits = exits.model_copy(update={"criteria": {name: exits.criteria[name]}})
            values = {
                "exits": lambda config: exits,
                "criterion_files": lambda config: criterion_files(exits.criteria),
                "sequences": lambda config: configs.whole_sequences(
                    exits.quality_tokens, config.model.context_length
                ),
            }
            names = ("run", "seed", "device", "model")
            return self.config_json(*names, **values | derived)(wildcards)

        return param

    def training_identity(self, wildcards: Any) -> str:
        """Everything that the weights of a run depend on besides its text, as JSON."""
        return canonical_json(configs.training_identity(self.runs.of(wildcards)[1]))

    # --- the user's text, which is no input of Snakemake ------------------------------------------

    def source_digest(self, wildcards: Any) -> str:
        """Digest of the files of data.path; empty for other sources.

        Where the files are gone, the digest that prepare_text recorded.
        """
        run, config = self.runs.of(wildcards)
        if config.data.source not in configs.FILE_SOURCES:
            return ""
        folder = Path(f"results/{run}/data")
        try:
            return digest_files(Path(str(config.data.path)), config.data.source)
        except (InputError, OSError):
            if (folder / SOURCE_DIGEST).is_file():
                return (folder / SOURCE_DIGEST).read_text().strip()
            if not (folder / "text/shard_000.parquet").exists():
                raise  # now, not in the first job
            return ""

    def record_source(self, wildcards: Any, output: Any) -> str:
        """End of the command of prepare_text, which writes `source_digest` to a file; empty without
        a digest. Untracked.
        """
        digest = self.source_digest(wildcards)
        # the folder above that of the shards
        record = Path(output[0]).parents[1] / SOURCE_DIGEST
        # `&&`: only after the text was written
        return f" && echo {digest} > {shlex.quote(str(record))}" if digest else ""

    # --- code -------------------------------------------------------------------------------------

    def code(self, script: str, *modules: str) -> Callable:
        """Fingerprint of an entry script, of further modules by dotted name, and of their
        imports.
        """
        return lambda wildcards: fingerprint(self.scripts / f"{script}.py", *modules)

    def torch_code(self, script: str, *modules: str) -> Callable:
        """`code` with the modules that are imported by name for the model of the run.

        It includes the defaults of the optional keys of `model` and `train`, which `config_json`
        and `training_identity` leave out.
        """

        @cache
        def of_run(run: str) -> str:
            config = self.runs[run]
            code = self.code(script, *modules, *configs.modules_of_model(config))
            return json_digest([code(None), configs.absent_values(config.model, config.train)])

        return lambda wildcards: of_run(self.runs.of(wildcards)[0])

    # --- jobs of scripts: all params of a rule ----------------------------------------------------

    def script(
        self,
        name: str,
        *arguments: str,
        config: Callable,
        tracked: Callable | None = None,
        modules: Sequence[str] = (),
        **options: Callable,
    ) -> dict[str, Any]:
        """Params of a job of scripts/<name>.py without torch.

        `config` is the param function of its config, which is tracked unless another one is given
        as `tracked`. The script imports `modules` by name. `options` are param functions of further
        JSON options, untracked.
        """
        return {
            "command": untracked(lambda wildcards: self._python(name, *arguments)),
            "job": job_file(config=config, **options),
            "files": _file_options,
            "code": self.code(name, *modules),
            "config": tracked or config,
        }

    def call(
        self,
        function: str,
        tables: Sequence[str] = (),
        config: Callable | None = None,
        modules: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Params of a job of scripts/call.py, which calls the function with this dotted path.

        The job writes `tables`; `config` is by default the name of the run; the function imports
        `modules` by name.
        """
        config = config or self.config_json("run")
        modules = [module_of(function), *modules]
        params = self.script("call", function, config=config, modules=modules)
        return params | {"tables": table_columns(*tables)}

    def measure(self, function: str, tables: Sequence[str], config: Callable) -> dict[str, Any]:
        """Params of a job of scripts/measure.py, which calls the function with this dotted path on
        a checkpoint and writes `tables`; reruns restore its result.
        """
        return self.torch_script("measure", function, config=config, tables=tables)

    def torch_script(
        self,
        name: str,
        *function: str,
        config: Callable,
        tables: Sequence[str],
        command: Callable | None = None,
        **options: Callable,
    ) -> dict[str, Any]:
        """Params of a job with torch.

        `function` is the dotted path of the function that the script calls, if any. `command` is by
        default that of one process.
        """
        return {
            "command": command or self._torch_command(name, *function),
            "job": job_file(config=config, **options),
            "files": _file_options,
            "code": self.torch_code(name, *map(module_of, function)),
            "config": config,
            "tables": table_columns(*tables),
        }

    def _torch_command(self, script: str, *arguments: str) -> Callable:
        """The command that starts an entry script in one process, on a GPU if it needs one."""

        @untracked
        def param(wildcards: Any) -> str:
            lease = self._lease(self.runs.resources.gpus(wildcards))
            return lease + self._python(script, *arguments)

        return param

    def training_command(self, script: str) -> Callable:
        """The command that starts an entry script in train.processes processes on train.nodes
        nodes.
        """

        @untracked
        def param(wildcards: Any) -> str:
            node = self.runs.resources.training_node(wildcards)
            if node.nodes * node.processes == 1:
                return self._lease(node.gpus) + self._python(script)
            started = self._python(
                "with_nodes", *map(str, node), str(self.scripts / f"{script}.py")
            )
            # SLURM assigns the GPUs of several nodes
            return started if node.nodes > 1 else self._lease(node.gpus) + started

        return param

    def _python(self, script: str, *arguments: str) -> str:
        return shlex.join(["python", str(self.scripts / f"{script}.py"), *arguments])

    def _lease(self, gpus: int) -> str:
        """Start of a command that waits for free GPUs."""
        return self._python("with_gpus", str(gpus)) + " " if gpus else ""


def untracked(function: Callable) -> Callable:
    """A param function with the value of `function`, a function of the wildcards, that never causes
    a rerun.

    Snakemake does not record a param that is computed from `output`. Its open issue 3895 calls that
    a bug; tests/workflow/test_untracked.py fails once it is mended. Then these values belong into
    `resources:`, which no rerun trigger compares, and shell lines read `{resources.job}`: a
    resource may be a function of wildcards and input that returns a string. The jobs of a group
    need another name of the resource for each rule, because Snakemake merges those of one name and
    refuses different strings.
    """

    def param(wildcards: Any, output: Any) -> Any:
        return function(wildcards)

    return param


def job_file(**options: Callable) -> Callable:
    """The path of a JSON file with those options of a job's script that are no files; untracked.

    The name is the digest of the content. So equal jobs share a file, and whoever evaluates the
    param writes the same file: a plan, a call, or Snakemake on the node of a cluster. `options` are
    param functions of JSON texts.
    """

    def param(wildcards: Any, output: Any) -> str:
        values = {name: json.loads(option(wildcards)) for name, option in options.items()}
        path = JOB_FILES / f"{json_digest(values)}.json"
        # A plan needs no file. A job without it ends with a sentence.
        with suppress(OSError):
            _write_once(path, canonical_json(values))
        return str(path)

    return param


def _write_once(path: Path, text: str) -> None:
    """Write a file in one step, unless it has this text. Faster than `replacing`, which waits for
    the disk.
    """
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # other processes and nodes may write the same file at this time
    temporary = path.with_suffix(f".{os.uname().nodename}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _file_options(wildcards: Any, input: Any, output: Any) -> str:
    """Param function: every named input and output of a job as an option, ``--name PATH ...``;
    untracked.

    Underscores become dashes. Inputs and outputs without a name or without files are left out.
    """
    words = []
    for name, files in [*input.items(), *output.items()]:
        if files:
            # Snakemake gives a single file as a string
            paths = [files] if isinstance(files, str) else files
            words += [f"--{name.replace('_', '-')}", *paths]
    return shlex.join(words)


def table_columns(*names: str) -> str:
    """Param: the columns of the tables that a rule writes, and the type of measures, as one
    canonical JSON string.
    """
    columns = {name: tables.columns(name) for name in names}
    for name in columns.keys() & tables.MEASURED:
        columns[name] = columns[name] | {"": tables.MEASURE_TYPE}
    return canonical_json(columns)


def criterion_files(criteria: Mapping[str, CriterionConfig]) -> dict[str, str]:
    """Fingerprints of the users' files among exit criteria."""
    return {
        name: criterion_file_fingerprint(entry.file, entry.class_name)
        for name, entry in criteria.items()
        if entry.file is not None and entry.class_name is not None
    }


def module_of(function: str) -> str:
    """The module of the function with this dotted path."""
    return function.rpartition(".")[0]
