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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, cast

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
    """The processes that train together on `device`, seen from number `rank` of `size`."""

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
        length, longer = divmod(samples, count)  # the first `longer` ranges have one sample more
        edges = [number * length + min(number, longer) for number in range(count + 1)]
        ranges = [slice(first, end) for first, end in pairwise(edges)]
        return ranges[self.rank :: self.size]  # one of each micro-batch

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, which must all pass the same order.

        The tensors have one dtype and are sent together, as one copy.
        """
        if self.size == 1:
            return
        tensors = list(tensors)
        values = torch.cat([tensor.flatten() for tensor in tensors])  # one message
        if dist.get_backend() == "nccl":
            dist.all_reduce(values, dist.ReduceOp.AVG)
        else:  # gloo has no average
            dist.all_reduce(values)
            values /= self.size
        # back into the tensors
        parts = values.split([tensor.numel() for tensor in tensors])
        shaped = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(tensors, shaped)

    def gather_number(self, number: int) -> list[int]:
        """A number of each process, in the order of their ranks. All processes must call this."""
        if self.size == 1:
            return [number]
        mine = torch.tensor([int(number)], device=self.device)
        numbers = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(numbers, mine)
        return torch.cat(numbers).tolist()


def init_distributed(device: str, processes: int) -> World:
    """Join the processes of this launch by torchrun; on CUDA, with the GPU of the local rank."""
    launch = machine.launch()
    if launch.size != processes:
        expected = f"{launch.size}, the number of processes that torchrun started together"
        raise InputError(f"config key train.processes: found {processes}, expected {expected}.")
    if launch.size == 1:
        return World()
    gpu = None
    if device == "cuda":
        gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # one for each process of a node
        torch.cuda.set_device(gpu)
    store = None
    if machine.STORE in os.environ:  # set where all processes are on one node
        store = dist.FileStore(os.environ[machine.STORE], launch.size)
        store.set_timeout(TIMEOUT)  # init_process_group sets it only for a store that it makes
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        timeout=TIMEOUT,
        world_size=launch.size,
        rank=launch.rank,
        store=store,
        device_id=gpu,
    )
    return World(launch.rank, launch.size, device)


@contextmanager
def connected(processes: int) -> Iterator[None]:
    """A block in which this many processes communicate; InputError where gloo loses one. NCCL ends
    the process.
    """
    try:
        yield
    except RuntimeError as error:
        # gloo, whose message names its source file, and the file store raise a plain RuntimeError
        is_lost = isinstance(error, dist.DistError) or "/gloo/" in str(error)
        if processes == 1 or not (is_lost or "Wait timeout" in str(error)):
            raise
        reason = first_line(error).partition(". ")[0]
        raise InputError(
            f"training: lost the connection to another process ({reason}); the next attempt"
            " resumes from the last saved state."
        ) from error


def destroy_distributed(world: World) -> None:
    if world.size > 1:
        dist.barrier()
        dist.destroy_process_group()


# uses weights of a looped group outside its `forward`; unlooped layers have none
_GROUP_METHOD = "project_input"
_MODEL_METHODS = ("hidden_states", "exit_states")  # what training calls first


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
    # float32, and raises the largest error of a gradient of a small model from 0.5 % to 3.7 %
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in model.blocks:
        is_group = hasattr(block, _GROUP_METHOD)
        divided = fully_shard(block, mesh=mesh, reshard_after_forward=not is_group)
        if is_group:
            divided.set_reshard_after_backward(False)  # `reshard` frees it
            register_fsdp_forward_method(block, _GROUP_METHOD)
    # embedding, head and final norm stay gathered as well, because `loss` needs them after
    # `hidden_states`
    module = cast(nn.Module, model)
    fully_shard(module, mesh=mesh, reshard_after_forward=False)
    for name in _MODEL_METHODS:
        if hasattr(model, name):
            register_fsdp_forward_method(module, name)


def reshard(model: LoopedModel) -> None:
    """Free the gathered parts of a divided model, which would not see the next update."""
    for module in (model, *model.blocks):
        cast("FSDPModule", module).reshard()


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors, on the CPU of the main process; none in the other processes.

    All processes must call this, with their parts of the same tensors in the same order.
    """
    whole = {}
    for name, part in tensors.items():
        tensor = cast("DTensor", part).full_tensor()
        if dist.get_rank() == 0:
            whole[name] = tensor.cpu()
    return whole


def shard_like(whole: Tensor, parameter: "DTensor") -> Tensor:
    """This process's part of a tensor, divided like a parameter of the same shape and device.

    All processes must have the same tensor.
    """
    from torch.distributed.tensor import distribute_tensor

    # None: each process takes its part of its tensor
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
