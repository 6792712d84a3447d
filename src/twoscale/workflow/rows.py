"""What a study registers in its module `study`: jobs in `JOBS` and figures in `FIGURES`.

The rules of workflow/rules/measurements.smk follow from these rows and from those of the core in
`twoscale.workflow.core`, so a study needs no rule file unless it has other rules.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twoscale.analysis.costs import Cost
from twoscale.config import Config

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


def all_cores(runs: "Runs", cores: int | None) -> int:
    """Threads of a job that measures time: all cores, so that no other job disturbs it; torch itself uses one."""
    return cores or 1


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rule, and the function that its job calls with a `twoscale.jobs.study_job.StudyJob`.

    Attributes:
        name: Name of the rule.
        function: Dotted path of the function.
        outputs: Name -> path, with the wildcards {run}, {iteration}, {grid} and {criterion} where there is a file
            for each; {selected} is the selected run.
        config: Param function of the slice of the config, see `Params.slice`; by default the name of the run.
        tables: Tables that the job writes.
        inputs: Name -> input function or path, besides those that every job of the kind has.
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
    def module(self) -> str:
        """Dotted name of the module of the function."""
        return self.function.rpartition(".")[0]

    @property
    def log(self) -> str:
        """The file of its log, with the wildcards of its outputs."""
        return self._file("logs", "log")

    @property
    def benchmark(self) -> str:
        """The file of its run time, with the wildcards of its outputs."""
        return self._file("benchmarks", "tsv")

    def _file(self, folder: str, suffix: str) -> str:
        """As `twoscale.report.pages.runtimes` reads it: the iteration after "_", other wildcards after "."."""
        wildcards = re.findall(r"\{(\w+)\}", next(iter(self.outputs.values())).replace("{selected}", ""))
        run = "{run}/" if "run" in wildcards else ""
        further = "".join(f"{'_' if name == 'iteration' else '.'}{{{name}}}" for name in wildcards if name != "run")
        return f"results/{run}{folder}/{self.name}{further}.{suffix}"

    def outputs_of(self, selected: str) -> dict[str, str]:
        """The outputs with the name of the selected run."""
        return {name: path.replace("{selected}", selected) for name, path in self.outputs.items()}

    def files(self, runs: "Runs") -> dict[str, Any]:
        """All inputs of the rule."""
        return dict(self.inputs(runs))


@dataclass(frozen=True, kw_only=True)
class Measurement(Job):
    """A job with torch on a checkpoint and held-out text; a rerun restores its result.

    It reads every checkpoint if its outputs have the wildcard {iteration}, otherwise the last one.

    Attributes:
        dtype: Section with the dtype in which the checkpoint is opened; determines the memory of a published model.
        minutes: Requested from a cluster at the first attempt.
        threads: (Runs, cores of the workflow) -> threads, or a function of the wildcards. Default: one.
        cpus: CPUs requested from a cluster.
        cost: Config -> its FLOPs and tokens, for `make plan`.
        group: Group of jobs that a cluster runs as one, or a function of the wildcards.
    """

    dtype: str
    minutes: int = 60
    threads: Callable[["Runs", int | None], Any] = lambda runs, cores: 1
    cpus: int = 1
    cost: Callable[[Config], Cost] = lambda run: Cost()
    group: Callable[["Runs"], Any] = lambda runs: None

    def files(self, runs: "Runs") -> dict[str, Any]:
        """A checkpoint, the files of its model and held-out text, and the row's own inputs."""
        each = any("{iteration}" in path for path in self.outputs.values())
        checkpoint = runs.paths.checkpoint_file if each else runs.paths.last_checkpoint
        model = {"checkpoint": checkpoint, **runs.paths.held_out, "model": runs.paths.model_files}
        return model | super().files(runs)


@dataclass(frozen=True, kw_only=True)
class Comparison(Job):
    """A job without torch that reads tables.

    Attributes:
        target: Target rule that needs its page, or its last output.
        modules: Dotted names of modules that the function imports by name.
        report: Category and label of its page in Snakemake's report; empty if the report does not have it.
        caption_file: Caption of the page in the project; by default that of the study.
    """

    target: str = ""
    modules: Callable[["Runs"], Sequence[str]] = lambda runs: ()
    report: tuple[str, ...] = ()
    caption_file: str = ""

    @property
    def shown(self) -> str:
        """The page, or the last output."""
        return self.outputs.get("page", [*self.outputs.values()][-1])

    @property
    def caption(self) -> str:
        """The file of the caption in the project."""
        return self.caption_file or f"src/{self.module.rpartition('.')[0].replace('.', '/')}/caption.rst"
