"""Resources of jobs: processors, memory and time, as functions of Snakemake's wildcards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twoscale.jobs.machine import NodeResources
from twoscale.model.flops import BYTES, parameters
from twoscale.workflow.memory import loading_bytes, training_bytes

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

TRAINING_MB = 16000  # of a training job on a node with GPUs, at its first attempt
_ANALYSIS_MB = 8000  # of a job that opens a checkpoint, besides the weights of a published model
_LIBRARIES_MB = 1500  # of Python and torch
_SMALL = 20_000_000  # parameters; jobs on such a model request half


@dataclass(frozen=True)
class Resources:
    """Resources of jobs that use torch. Unless noted, methods are resource functions.

    Attributes:
        runs: The runs of the config.
    """

    runs: "Runs"

    # --- jobs on a checkpoint ---------------------------------------------------------------------

    def torch_job(self, section: str, minutes: int = 60, cpus: int = 1) -> dict[str, Any]:
        """Resources of a job that opens a checkpoint in the dtype of a config section.

        `threads` is limited by the cores of the machine that runs Snakemake; a job on a cluster
        requests `cpus`.
        """

        def mem_mb(wildcards: Any, attempt: int) -> int:
            config = self.runs.of(wildcards)[1]
            weights = parameters(config.model)
            if config.model.source == "published":
                loaded = weights * BYTES[getattr(config, section).dtype] // 10**6  # MB
                return (_ANALYSIS_MB + loaded) * attempt
            return (_ANALYSIS_MB // 2 if weights < _SMALL else _ANALYSIS_MB) * attempt

        return {
            "mem_mb": mem_mb,
            "runtime": per_attempt(minutes),
            "gpu": self.gpus,
            "gpu_slot": self.gpus,
            "cpus_per_task": cpus,
        }

    def gpus(self, wildcards: Any) -> int:
        return int(self.runs.of(wildcards)[1].compute.device == "cuda")

    def exit_threads(self, cores: int | None) -> Callable:
        """Return the `threads` of a quality job: the jobs of all criteria share the cores.

        Small tensors gain little from a second thread.
        """
        return lambda wildcards: max(1, (cores or 1) // len(self.runs.exits(wildcards).criteria))

    def last_group(self, wildcards: Any) -> str:
        """The group of jobs on the last checkpoint, `analyses_{run}_{iteration}` of the rules."""
        run, _ = self.runs.of(wildcards)
        return f"analyses_{run}_{self.runs.iterations(run)[-1]:06d}"

    # --- training ---------------------------------------------------------------------------------

    def training_job(self) -> dict[str, Callable]:
        """Processors and GPUs of a training job, on several nodes as Snakemake's SLURM executor
        takes them.

        - `cpus_per_task`: Snakemake limits `threads` to the cores of its machine, but not this.
        - `mpi`: the job itself calls srun.
        - `tasks_per_gpu` keeps the executor from computing a number of tasks.
        - `gres`: GPUs of each node; `gpu` counts those of the job, which SLURM may distribute
          unevenly.
        """
        on_one = {
            "cpus_per_task": lambda node: node.cpus,
            "gpu": lambda node: node.gpus if node.nodes == 1 else 0,
            "gpu_slot": lambda node: node.gpus * node.nodes,
        }
        on_several = {
            "nodes": lambda node: node.nodes,
            "tasks": lambda node: node.nodes,
            "mpi": lambda node: "srun",
            "tasks_per_gpu": lambda node: 0,
            "gres": lambda node: f"gpu:{node.gpus}" if node.gpus else None,
        }

        def of_node(value: Callable[[NodeResources], Any], several: bool) -> Callable:
            def resource(wildcards: Any) -> Any:
                node = self.training_node(wildcards)
                return None if several and node.nodes == 1 else value(node)

            return resource

        resources = {name: of_node(value, several=False) for name, value in on_one.items()}
        return resources | {
            name: of_node(value, several=True) for name, value in on_several.items()
        }

    def training_node(self, wildcards: Any) -> NodeResources:
        """Resources of each node of a training job, with at least four CPUs per GPU to prefetch and
        compile; no resource function.
        """
        config = self.runs.of(wildcards)[1]
        train = config.train
        processes = train.processes // train.nodes
        gpus = processes if config.compute.device == "cuda" else 0
        cpus = max(train.cpu_threads * processes, 4 * gpus)
        return NodeResources(train.nodes, processes, cpus, gpus)

    def training_threads(self, wildcards: Any) -> int:
        """Threads of all processes on a node."""
        train = self.runs.of(wildcards)[1].train
        return train.cpu_threads * train.processes // train.nodes

    def training_mb(self, wildcards: Any, attempt: int) -> int:
        config = self.runs.of(wildcards)[1]
        train = config.train
        if config.compute.device == "cuda":
            needed = TRAINING_MB
        else:
            libraries = _LIBRARIES_MB * train.processes // train.nodes  # of a node
            needed = libraries + training_bytes(config) // 10**6
        if train.shard:
            needed += loading_bytes(config) // 10**6
        return needed * attempt


def per_attempt(amount: int) -> Callable:
    """Resource function: `amount` times the number of the attempt, for jobs that failed for lack of
    it.
    """
    return lambda wildcards, attempt: amount * attempt
