"""Data-parallel training processes, started by torchrun on one node or several.

A single process needs no process group.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from twoscale.base import InputError, first_line
from twoscale.jobs import launch

# How long a process waits for the others. It covers what the main process does alone: it measures the held-out loss and
# writes the state.
TIMEOUT = timedelta(hours=1)


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
        """Replace each tensor by its mean over the processes, in place. All processes must pass the same order.

        All tensors of one dtype are sent together, as one copy.
        """
        if self.size == 1:
            return
        by_dtype = defaultdict(list)
        for tensor in tensors:
            by_dtype[tensor.dtype].append(tensor)
        for group in by_dtype.values():
            parts = self._mean(torch.cat([tensor.flatten() for tensor in group])).split([t.numel() for t in group])
            torch._foreach_copy_(group, [part.view_as(t) for part, t in zip(parts, group, strict=True)])

    def _mean(self, values: Tensor) -> Tensor:
        """The mean over the processes, in place of `values`."""
        if dist.get_backend() == "nccl":
            dist.all_reduce(values, dist.ReduceOp.AVG)
            return values
        dist.all_reduce(values)  # gloo has no average
        return values.div_(self.size)

    def gather_number(self, number: int) -> list[int]:
        """A number of each process, in the order of their ranks. All processes must call this."""
        if self.size == 1:
            return [number]
        mine = torch.tensor([int(number)], device=self.device)
        numbers = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(numbers, mine)
        return torch.cat(numbers).tolist()


def init_distributed(device: str, processes: int) -> World:
    """Join the processes of this launch by torchrun. On CUDA a process uses the GPU of its local rank.

    Raises InputError where they are not as many as `processes`, the config key train.processes.
    """
    team = launch.checked_team(processes)
    if team.size == 1:
        return World()
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device == "cuda" else None
    if gpu:
        torch.cuda.set_device(gpu)
    path = os.environ.get(launch.STORE)  # set where all processes are on one node
    store = dist.FileStore(path, team.size) if path else None
    if store:
        store.set_timeout(TIMEOUT)  # init_process_group sets it only for a store that it makes
    ranks: dict[str, Any] = {"rank": team.rank, "world_size": team.size}
    dist.init_process_group("nccl" if gpu else "gloo", store=store, timeout=TIMEOUT, device_id=gpu, **ranks)
    return World(dist.get_rank(), team.size, device)


@contextmanager
def connected(processes: int) -> Iterator[None]:
    """A block in which this many processes join and communicate; raises InputError where another one is lost.

    That is how gloo reports it. NCCL ends the process instead, with another message.
    """
    try:
        yield
    except RuntimeError as error:
        # gloo, whose message names its source file, and the file store raise a plain RuntimeError
        lost = isinstance(error, dist.DistError) or any(text in str(error) for text in ("/gloo/", "Wait timeout"))
        if processes == 1 or not lost:
            raise
        reason = first_line(error).partition(". ")[0]
        raise InputError(
            f"training: lost the connection to another process ({reason}), expected all {processes} processes to run "
            "to the end; the next attempt resumes from the last saved state."
        ) from error


def destroy_distributed(world: World) -> None:
    """Wait for all processes, then destroy the process group."""
    if world.size > 1:
        dist.barrier()
        dist.destroy_process_group()
