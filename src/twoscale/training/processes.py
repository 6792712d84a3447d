"""Data-parallel training processes, started by torchrun on one node or several, and models divided
over them.

A single process needs no process group. Under train.shard FSDP2 of PyTorch (`fully_shard`) divides
the model: each process keeps a part of every weight, gradient and moment. The float32 weights of an
unlooped layer are gathered while it computes. A looped group stays gathered from its first loop
step to the end of the backward pass, because its next use is the next loop step; autograd adds up
its gradient over the loop steps before the processes average it. The averages equal `World.average`
but for the order of sums.
"""

import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from twoscale.base import InputError, first_line
from twoscale.jobs import machine
from twoscale.model.interface import LoopedModel

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


# How long a process waits for the others. It covers what the main process does alone: it measures
# the held-out loss and writes the state.
TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True)
class World:
    """The processes that train together on `device`, seen from the one with the number `rank` of
    `size`.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_main(self) -> bool:
        """Whether this process prints progress and writes files."""
        return self.rank == 0

    def parts(self, samples: int, micro_batches: int) -> list[slice]:
        """The samples of this process in each micro-batch: consecutive ranges, one per micro-batch.

        A batch of `samples` is cut into micro_batches times size ranges in order, whose lengths
        differ by one at most; the longer ones come first. Ranges are empty where there are fewer
        samples, but not in the first micro-batch, unless there are fewer samples than processes.
        """
        count = micro_batches * self.size
        length, longer = divmod(samples, count)
        numbers = range(self.rank, count, self.size)
        firsts = [number * length + min(number, longer) for number in numbers]
        return [
            slice(first, first + length + (number < longer))
            for number, first in zip(numbers, firsts, strict=True)
        ]

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, which must all pass the same order.

        All tensors of one dtype are sent together, as one copy.
        """
        if self.size == 1:
            return
        has_average = dist.get_backend() == "nccl"  # gloo has none
        by_dtype = defaultdict(list)
        for tensor in tensors:
            by_dtype[tensor.dtype].append(tensor)
        for group in by_dtype.values():
            values = torch.cat([tensor.flatten() for tensor in group])
            dist.all_reduce(values, dist.ReduceOp.AVG if has_average else dist.ReduceOp.SUM)
            parts = (values if has_average else values.div_(self.size)).split(
                [tensor.numel() for tensor in group]
            )
            torch._foreach_copy_(
                group, [part.view_as(tensor) for part, tensor in zip(parts, group, strict=True)]
            )

    def gather_number(self, number: int) -> list[int]:
        """A number of each process, in the order of their ranks. All processes must call this."""
        if self.size == 1:
            return [number]
        mine = torch.tensor([int(number)], device=self.device)
        numbers = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(numbers, mine)
        return torch.cat(numbers).tolist()


def init_distributed(device: str, processes: int) -> World:
    """Join the processes of this launch by torchrun. On CUDA a process uses the GPU of its local
    rank.
    """
    launch = machine.launch()
    if launch.size != processes:
        expected = f"{launch.size}, the number of processes that torchrun started together"
        raise InputError(f"config key train.processes: found {processes}, expected {expected}.")
    if launch.size == 1:
        return World()
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device == "cuda" else None
    if gpu:
        torch.cuda.set_device(gpu)
    path = os.environ.get(machine.STORE)  # set where all processes are on one node
    store = dist.FileStore(path, launch.size) if path else None
    if store:
        store.set_timeout(TIMEOUT)  # init_process_group sets it only for a store that it makes
    ranks: dict[str, Any] = {"rank": launch.rank, "world_size": launch.size}
    dist.init_process_group(
        "nccl" if gpu else "gloo", store=store, timeout=TIMEOUT, device_id=gpu, **ranks
    )
    return World(dist.get_rank(), launch.size, device)


@contextmanager
def connected(processes: int) -> Iterator[None]:
    """A block in which this many processes communicate; InputError where gloo loses one. NCCL ends
    the process.
    """
    try:
        yield
    except RuntimeError as error:
        # gloo, whose message names its source file, and the file store raise a plain RuntimeError
        lost = isinstance(error, dist.DistError) or any(
            text in str(error) for text in ("/gloo/", "Wait timeout")
        )
        if processes == 1 or not lost:
            raise
        found = f"lost the connection to another process ({first_line(error).partition('. ')[0]})"
        raise InputError(
            f"training: {found}; the next attempt resumes from the last saved state."
        ) from error


def destroy_distributed(world: World) -> None:
    if world.size > 1:
        dist.barrier()
        dist.destroy_process_group()


# uses weights of a looped group outside its `forward`; unlooped layers have none
GROUP_METHOD = "project_input"
MODEL_METHODS = ("hidden_states", "exit_states")  # what training calls first


def shard_model(model: LoopedModel, device: str) -> None:
    """Divide a model on the CPU over all processes, each of which keeps its part on `device`.

    All processes must have the same weights. One block at a time is whole on the device.
    """
    # imported here: it takes a second, and few runs divide a model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # nothing is changed in place of what a block returns, of which FSDP warns at every view
    warnings.filterwarnings(
        "ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning
    )
    # no MixedPrecisionPolicy: in bfloat16 it rounds norms and states, which autocast keeps in
    # float32 (docs/cluster.md)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in model.blocks:
        is_group = hasattr(block, GROUP_METHOD)
        divided = fully_shard(block, mesh=mesh, reshard_after_forward=not is_group)
        if is_group:
            divided.set_reshard_after_backward(False)
            register_fsdp_forward_method(block, GROUP_METHOD)
    # embedding, head and final norm stay gathered as well, because `loss` needs them after
    # `hidden_states`
    module = cast(nn.Module, model)
    fully_shard(module, mesh=mesh, reshard_after_forward=False)
    for name in filter(partial(hasattr, model), MODEL_METHODS):
        register_fsdp_forward_method(module, name)


def reshard(model: LoopedModel) -> None:
    """Free the gathered parts of a divided model, which would otherwise not see the next update of
    its weights.
    """
    for module in (model, *model.blocks):
        cast("FSDPModule", module).reshard()


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors on the CPU of the main process, one after the other; none in the other
    processes.

    All processes must call this, with their parts of the same tensors in the same order.
    """
    whole = {}
    for name, part in tensors.items():
        tensor = cast("DTensor", part).full_tensor()
        if dist.get_rank() == 0:
            whole[name] = tensor.cpu()
    return whole


def shard_like(whole: Tensor, parameter: "DTensor") -> Tensor:
    """The part of a tensor that belongs to this process's part of a parameter of the same shape and
    device.

    All processes must have the same tensor.
    """
    from torch.distributed.tensor import distribute_tensor

    # None: each process takes its part of its tensor
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
