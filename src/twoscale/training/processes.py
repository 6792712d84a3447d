"""Data-parallel processes on one node, started by torchrun; one process alone needs none of it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """This process among those that train together: `rank` of `size`."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that shows progress and writes files."""
        return self.rank == 0

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, in place and in the same order everywhere."""
        if self.size == 1:
            return
        tensors = list(tensors)
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        for tensor in tensors:
            tensor /= self.size


def init_distributed(device: str) -> World:
    """The world that torchrun's environment describes; on CUDA each process takes the GPU of its rank."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return World(dist.get_rank(), size)


def destroy_distributed(world: World) -> None:
    """Wait for the others, then part."""
    if world.size > 1:
        dist.barrier()
        dist.destroy_process_group()
