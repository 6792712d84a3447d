"""Gradients of a divided and of a whole model on one batch, for tests/unit/test_sharding.py.

torchrun starts it in several processes; the main one prints what it has found in one line of JSON.
"""

import json
from typing import Any

import torch
import torch.distributed as dist

from tests.small import job_config, learnable_tokens, model_config, train_config
from twoscale.data.batches import held_out_sequences
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise
from twoscale.training.processes import World, destroy_distributed, init_distributed
from twoscale.training.state import TrainingState, restore
from twoscale.training.trainer import Trainer, TrainingData

SEED = 11
LOOPS = 5
OURO = {
    "groups": [[1, 2, 3, 4]],
    "state_init": "input",
    "injection": "none",
    "loop_norm": True,
    "sandwich": "branch",
}

# Keys of model and train of each comparison.
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paper": ({}, {}),
    "recomputed": ({}, {"recompute": True}),
    "truncated": ({}, {"backprop_depth": 2}),
    "truncated and recomputed": ({}, {"backprop_depth": 2, "recompute": True}),
    "micro-batches of one sequence": ({}, {"batch_size": 5, "micro_batches": 2}),
    "bfloat16": ({}, {"precision": "bfloat16"}),
    "head of its own": ({"tied_head": False, "exit_norm": "final_norm"}, {}),
    "gate": ({"groups": [[2, 3]], "exit_gate": True}, {"exit_gate": {"entropy_weight": 0.1}}),
    "gate without training": ({"groups": [[2, 3]], "exit_gate": True}, {}),
    "Ouro": (OURO, {}),
    "no loops": ({"groups": [], "loop_norm": False}, {}),
}


def state_of(
    world: World, model: dict[str, Any], train: dict[str, Any]
) -> tuple[Trainer, TrainingState]:
    made = model_config(hidden_size=16, loop_noise=0.1, **model)
    recipe = train_config(**{"processes": world.size, "shard": world.size > 1, **train})
    config = job_config(seed=SEED, model=made, train=recipe)
    tokens = learnable_tokens(400)
    data = TrainingData(tokens, held_out_sequences(tokens[::-1].copy(), 36, made.context_length, 3))
    weights = initialise(made, SEED).state_dict()
    return Trainer(config, data, world), restore(
        config, weights, {}, Header("weights", 0, 0, {}, {})
    )


def measured(world: World, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    """Loss, gradients, norm and held-out loss, and the numbers of the weights that this process
    has.
    """
    trainer, state = state_of(world, model, train)
    state.log.append({})
    trainer.measure_held_out(state)
    loss = trainer.accumulate_gradient(
        state.model, state.iteration, [LOOPS] * len(state.model.config.groups)
    )
    parameters = dict(state.model.named_parameters())
    kept = sum((part.to_local() if state.sharded else part).numel() for part in parameters.values())
    gradients = {name: part.grad for name, part in parameters.items() if part.grad is not None}
    # copies, because clipping scales the gradients in place
    gradients = {
        name: (part.full_tensor() if state.sharded else part).clone()
        for name, part in gradients.items()
    }
    found = {"loss": loss.item(), "held out": state.log[0]["held_out_loss"]}
    found["norm"] = trainer.clip_gradient(state.model).item()
    return found | {"gradients": gradients, "kept": kept}


def compared(world: World, model: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    """What differs between the divided and the whole model, as shares, and the share of the weights
    that is kept.
    """
    divided, whole = measured(world, model, train), measured(World(), model, train)
    shares = {name: abs(divided[name] / whole[name] - 1) for name in ("loss", "held out", "norm")}
    assert divided["gradients"].keys() == whole["gradients"].keys()
    differences = [
        (gradient - whole["gradients"][name]).norm()
        / whole["gradients"][name].norm().clamp_min(1e-12)
        for name, gradient in divided["gradients"].items()
    ]
    return shares | {"gradient": max(differences).item(), "kept": divided["kept"] / whole["kept"]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    team = init_distributed("cpu", 2)
    found = {name: compared(team, *keys) for name, keys in VARIANTS.items()}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    destroy_distributed(team)
