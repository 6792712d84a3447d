"""Data-parallel training processes, started by torchrun on one node or several.

A single process needs no process group.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from twoscale import launch
from twoscale.errors import InputError, first_line


@dataclass(frozen=True)
class World:
    """The processes that train together on `device`, seen from the one with the number `rank` of `size`."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this process prints progress and writes files."""
        return self.rank == 0

    def parts(self, samples: int, micro_batches: int) -> list[slice]:
        """The samples of this process in each micro-batch: consecutive ranges, one per micro-batch.

        A batch of `samples` is cut into micro_batches times size ranges in order, whose lengths differ by one at most;
        the longer ones come first. Ranges are empty where there are fewer samples, but not in the first micro-batch,
        unless there are fewer samples than processes.
        """
        count = micro_batches * self.size
        length, longer = divmod(samples, count)
        numbers = range(self.rank, count, self.size)
        firsts = [number * length + min(number, longer) for number in numbers]
        return [slice(first, first + length + (number < longer)) for number, first in zip(numbers, firsts, strict=True)]

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, in place. All processes must pass the same order."""
        if self.size == 1:
            return
        tensors = list(tensors)
        # start all reductions before waiting for the first, so that they overlap
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        for tensor in tensors:
            tensor /= self.size

    def gather_number(self, number: int) -> list[int]:
        """A number of each process, in the order of their ranks. All processes must call this."""
        if self.size == 1:
            return [number]
        mine = torch.tensor([int(number)], device=self.device)
        numbers = torch.empty(self.size, dtype=mine.dtype, device=self.device)
        dist.all_gather_into_tensor(numbers, mine)
        return numbers.tolist()


def init_distributed(device: str, processes: int) -> World:
    """Join the processes of this launch by torchrun. On CUDA a process uses the GPU of its local rank.

    Raises InputError where they are not as many as `processes`, the config key train.processes.
    """
    team = launch.checked_team(processes)
    if team.size == 1:
        return World()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return World(dist.get_rank(), team.size, device)


@contextmanager
def connected(world: World) -> Iterator[None]:
    """A block in which processes communicate; raises InputError where another process is lost, as with its node."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises a plain RuntimeError, which names its source file
        if world.size == 1 or not (isinstance(error, dist.DistError) or "/gloo/" in str(error)):
            raise
        reason = first_line(error).partition(". ")[0]
        raise InputError(
            f"training: lost the connection to another process ({reason}), expected all {world.size} processes to the "
            "end; the next attempt resumes from the last saved state."
        ) from error


def destroy_distributed(world: World) -> None:
    """Wait for all processes, then destroy the process group."""
    if world.size > 1:
        dist.barrier()
        dist.destroy_process_group()
