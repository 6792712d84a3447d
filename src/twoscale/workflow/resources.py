"""The resources of jobs: processors, GPUs, nodes, memory and time."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twoscale.config import Config
from twoscale.jobs.launch import NodeResources
from twoscale.model.flops import BYTES, parameters
from twoscale.training.plan import activation_bytes, loading_bytes
from twoscale.workflow.paths import trains

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

TRAINING_MB = 16000  # of a training job on a node with GPUs, at its first attempt
LIBRARIES_MB = 1500  # of Python and torch
TRAINED = 7  # weights, gradients and two moments, and weights and moments of a file
SMALL = 20_000_000  # parameters; jobs on such a model ask for half


@dataclass
class Resources:
    """The resources of jobs. Where nothing else is said, a method is a resource function or makes one.

    Attributes:
        runs: The runs of the config.
        before_jobs: A check that the workflow makes when it has a plan.
    """

    runs: "Runs"
    before_jobs: Callable[[], None] = lambda: None

    def checked(self, function: Callable) -> Callable:
        """The value of `function`, a function of the wildcards, after the check of the plan.

        Snakemake has no hook between planning and the first job that a dry run calls too. It evaluates resources only
        of jobs that run.
        """

        def resource(wildcards: Any) -> Any:
            self.before_jobs()
            return function(wildcards)

        return resource

    def gpus(self, wildcards: Any) -> int:
        """GPUs of a job that uses torch."""
        return int(self.runs.of(wildcards)[1].compute.device == "cuda")

    def exit_threads(self, cores: int | None, grid: str | None = None) -> Callable:
        """Threads of a quality job, so that the jobs of all criteria of a grid share the cores.

        Small tensors gain little from a second thread, and jobs side by side gain all of a second core. `grid` is a
        wildcard unless given.
        """
        return lambda wildcards: max(1, (cores or 1) // len(self.runs.exits(wildcards, grid).criteria))

    def last_group(self, wildcards: Any) -> str:
        """The group of jobs that analyse the last checkpoint, as the rules' `analyses_{run}_{iteration}` names it."""
        run, _ = self.runs.of(wildcards)
        return f"analyses_{run}_{self.runs.paths.iterations(run)[-1]:06d}"

    def torch_job(self, section: str, memory: int, minutes: int, **further: Any) -> dict[str, Any]:
        """Resources of a job that opens a checkpoint in the dtype of a section: MB and minutes of the first attempt.

        `memory` is for everything but the weights of a published model. Jobs on a small model ask for half of it.
        """

        def mem_mb(wildcards: Any, attempt: int) -> int:
            config = self.runs.of(wildcards)[1]
            weights = parameters(config.model)
            if trains(config):
                return (memory // 2 if weights < SMALL else memory) * attempt
            return (memory + weights * BYTES[getattr(config, section).dtype] // 10**6) * attempt

        asked = {"mem_mb": mem_mb, "runtime": growing(minutes), "gpu": self.checked(self.gpus), "gpu_slot": self.gpus}
        return asked | further

    # --- training ---------------------------------------------------------------------------------------------------

    def training_gpus(self, wildcards: Any) -> int:
        """GPUs of a training job, one per process."""
        return self.gpus(wildcards) * self.runs.of(wildcards)[1].train.processes

    def training_threads(self, wildcards: Any) -> int:
        """Threads of a training job on each node, all its processes together."""
        train = self.runs.of(wildcards)[1].train
        return train.cpu_threads * train.processes // train.nodes

    def node_share(self, wildcards: Any) -> NodeResources:
        """What each node of a training job has; CPUs: four per GPU at least, to prefetch and to compile."""
        train = self.runs.of(wildcards)[1].train
        gpus = self.training_gpus(wildcards)
        cpus = max(self.training_threads(wildcards), 4 * gpus // train.nodes)
        return NodeResources(train.nodes, train.processes // train.nodes, cpus, gpus // train.nodes)

    def training_memory(self, wildcards: Any, attempt: int) -> int:
        """MB of a training job on each node, with those for loading a model that is divided."""
        config = self.runs.of(wildcards)[1]
        loaded = loading_bytes(config) // 10**6 if config.train.shard else 0
        on_cpu = LIBRARIES_MB * config.train.processes // config.train.nodes + training_bytes(config) // 10**6
        return ((on_cpu if config.compute.device == "cpu" else TRAINING_MB) + loaded) * attempt

    def training_job(self) -> dict[str, Callable]:
        """Processors and GPUs of a training job on one node, and for several what Snakemake's SLURM executor takes.

        `cpus_per_task`: Snakemake limits `threads` to the cores of its machine, but not this.
        `mpi`: the job itself calls srun. `tasks_per_gpu` keeps the executor from a number of tasks of its own.
        `gres`: GPUs of each node, in place of `gpu`, those of the job, which SLURM may distribute unevenly.
        """

        def on_several(value: Callable[[NodeResources], Any], alone: Any = None) -> Callable:
            def resource(wildcards: Any) -> Any:
                share = self.node_share(wildcards)
                return value(share) if share.nodes > 1 else alone and alone(wildcards)

            return resource

        return {
            "nodes": on_several(lambda share: share.nodes),
            "tasks": on_several(lambda share: share.nodes),
            "mpi": on_several(lambda share: "srun"),
            "tasks_per_gpu": on_several(lambda share: 0),
            "gres": on_several(lambda share: f"gpu:{share.gpus}" if share.gpus else None),
            "cpus_per_task": lambda wildcards: self.node_share(wildcards).cpus,
            "gpu": self.checked(on_several(lambda share: 0, alone=self.training_gpus)),
            "gpu_slot": self.training_gpus,
        }


def growing(amount: int) -> Callable:
    """`amount` times the number of the attempt, for jobs that may have failed for lack of it."""
    return lambda wildcards, attempt: amount * attempt


def training_bytes(run: Config) -> int:
    """Bytes of a node's memory that training on the CPU takes, without those of Python and its libraries.

    A process has weights, gradients and moments, those of a file that it reads or writes, the activations of its
    sequences, and four copies of their logits. Activations and logits are doubled, because loop counts are sampled and
    the allocator keeps what it has had: two runs of 0.7 and 3.5 million parameters took half of the result at most.
    """
    model, train = run.model, run.train
    sequences = math.ceil(train.batch_size / (train.micro_batches * train.processes))
    logits = model.context_length * model.vocab_size * BYTES["float32"]
    states = TRAINED * parameters(model) * BYTES["float32"]
    process = states + 2 * sequences * (activation_bytes(run) + 4 * logits)
    return int(process * (train.processes // train.nodes))
