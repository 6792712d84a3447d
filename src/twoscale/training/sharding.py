"""A model divided over the training processes: FSDP2 of PyTorch (`fully_shard`), under train.shard.

Each process keeps a part of every weight, gradient and moment. The float32 weights of an unlooped layer are gathered
while it computes. A looped group stays gathered from its first loop step to the end of the backward pass, because its
next use is the next loop step; autograd adds up its gradient over the loop steps before the processes average it. The
averages equal `World.average` but for the order of sums.
"""

import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import torch.distributed as dist
from torch import Tensor, nn

from twoscale.model.interface import LoopedModel

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

GROUP_METHOD = "project_input"  # uses weights of a looped group outside its `forward`; unlooped layers have none
MODEL_METHODS = ("hidden_states", "exit_states")  # what training calls first


def shard_model(model: LoopedModel, device: str) -> None:
    """Divide a model on the CPU over all processes, each of which keeps its part on `device`.

    All processes must have the same weights. One block at a time is whole on the device.
    """
    # imported here: it takes a second, and few runs divide a model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    # nothing is changed in place of what a block returns, of which FSDP warns at every view
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning)
    # no MixedPrecisionPolicy: in bfloat16 it rounds norms and states, which autocast keeps in float32 (docs/cluster.md)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in model.blocks:
        is_group = hasattr(block, GROUP_METHOD)
        divided = fully_shard(block, mesh=mesh, reshard_after_forward=not is_group)
        if is_group:
            divided.set_reshard_after_backward(False)
            register_fsdp_forward_method(block, GROUP_METHOD)
    # embedding, head and final norm stay gathered as well, because `loss` needs them after `hidden_states`
    module = cast(nn.Module, model)
    fully_shard(module, mesh=mesh, reshard_after_forward=False)
    for name in filter(partial(hasattr, model), MODEL_METHODS):
        register_fsdp_forward_method(module, name)


def reshard(model: LoopedModel) -> None:
    """Free the gathered parts of a divided model, which would otherwise not see the next update of its weights."""
    for module in (model, *model.blocks):
        cast("FSDPModule", module).reshard()


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors on the CPU of the main process, one after the other; none in the other processes.

    All processes must call this, with their parts of the same tensors in the same order.
    """
    whole = {}
    for name, part in tensors.items():
        tensor = cast("DTensor", part).full_tensor()
        if dist.get_rank() == 0:
            whole[name] = tensor.cpu()
    return whole


def shard_like(whole: Tensor, parameter: "DTensor") -> Tensor:
    """The part of a tensor that belongs to this process's part of a parameter of the same shape and device.

    All processes must have the same tensor.
    """
    from torch.distributed.tensor import distribute_tensor

    # None: each process takes its part of its tensor
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
