"""Small configurations that the unit tests share: the paper's structure at a size that runs in
milliseconds.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twoscale.config import Config, ConfigSlice, ModelConfig, Section, TrainConfig, plain, runs
from twoscale.config.loading import STUDY_SECTIONS
from twoscale.config.sections import CoreConfig
from twoscale.config.types import build
from twoscale.data.batches import HeldOut
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import LoopedModel
from twoscale.model.transformer import initialise
from twoscale.workflow.runs import Runs

ROOT = Path(__file__).parents[1]
PRESETS = ROOT / "workflow" / "presets"

# Built-in exit criteria whose larger threshold asks for more loop steps; that of the others for
# fewer.
LATER_IF_LARGER = frozenset({"fixed", "argmax_stability", "confidence", "margin", "exit_gate"})

# Keys that differ from the paper's.
MODEL = {
    "num_layers": 4,
    "num_heads": 2,
    "hidden_size": 8,
    "context_length": 8,
    "vocab_size": 37,
    "groups": ((2,), (3,)),
    "mean_loops": 3,
}

# Keys of the architectures of published models, without sizes. Parcae with norms of a sandwich, so
# that its untrained loops differ from token to token.
GATED = {"positions": "rotary", "mlp": "gated"}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Huginn": GATED | {"exit_norm": "final_norm", "qk_bias": True},
    "Ouro": GATED
    | {"sandwich": "branch", "state_init": "input", "injection": "none", "loop_norm": True}
    | {"rotary_pairs": "halves", "tied_head": False},
    "retrofitted Llama": GATED | {"norms": "pre", "rotary_pairs": "halves", "tied_head": False},
    "retrofitted OLMo": {"positions": "rotary", "norms": "post", "qk_norm": True},
    "Parcae": {"positions": "rotary", "injection": "diagonal", "exit_projection": True}
    | {"qk_norm": "head", "input_norm": True, "activation": "relu2", "logit_softcap": 2.0}
    | {"value_embeddings": (1, 3)},
    "Parcae with sums": {"positions": "rotary", "injection": "add", "exit_projection": True}
    | {"qk_norm": "head", "mlp": "gated", "activation": "gelu", "logit_softcap": 2.0},
}

TRAIN = {
    "iterations": 20,
    "checkpoint_every": 10,
    "early_checkpoints": (),
    "save_seconds": 1000.0,
    "batch_size": 4,
    "compile": False,
    "learning_rate": 1e-2,
    "min_learning_rate": 1e-3,
    "warmup_iterations": 5,
    "lr_decay_iterations": 20,
    "held_out_every": 5,
    "held_out_sequences": 2,
    "held_out_loops": 3,
}


def model_config(**changes: Any) -> ModelConfig:
    return build(ModelConfig, MODEL | changes, "model")


def train_config(**changes: Any) -> TrainConfig:
    return build(TrainConfig, TRAIN | changes, "train")


def job_config(*derived: str, **sections: Any) -> ConfigSlice:
    """The config of a job, with the small model and training config unless others are given.

    `derived`: names of values that are derived from the sections.
    """
    values = {
        "seed": 1,
        "device": "cpu",
        "run": "small",
        "model": model_config(),
        "train": train_config(),
    } | sections
    values |= {name: getattr(CoreConfig.model_construct(**values), name) for name in derived}
    return ConfigSlice(
        {name: plain(v) if isinstance(v, Section) else v for name, v in values.items()}
    )


def checkpoint(model: LoopedModel, seed: int = 0, iteration: int = 0) -> LoadedCheckpoint:
    """A model in memory as a loaded checkpoint."""
    return LoadedCheckpoint(model, iteration, seed)


def perturbed(seed: int, iteration: int = 0, **changes: Any) -> LoadedCheckpoint:
    """A float64 model far from its initial weights, so that loops change predictions."""
    model = initialise(model_config(**changes), 1).double().requires_grad_(False)
    for number, (name, weights) in enumerate(model.named_parameters()):
        if not name.endswith("norm.weight"):
            weights += 0.3 * torch.randn(
                weights.shape, generator=torch.Generator().manual_seed(number)
            )
    return checkpoint(model, seed, iteration)


def held_out(
    inputs: Tensor, targets: Tensor | None = None, sequences: Sequence[int] | None = None
) -> HeldOut:
    """Sequences of the given numbers (by default 0, 1, …), of which document 2 n has the first
    token of number n.
    """
    numbers = tuple(range(len(inputs)) if sequences is None else sequences)
    return HeldOut(
        inputs,
        inputs if targets is None else targets,
        numbers,
        tuple(2 * number for number in numbers),
    )


def learnable_tokens(length: int) -> np.ndarray:
    """Two interleaved cycles of ids: uint16 (length,)."""
    numbers = np.arange(length)
    return np.where(numbers % 2, 20 + numbers % 6, numbers % 10).astype("<u2")


def without_projection() -> dict[str, Any]:
    """Sections of a config without a projection of state and input, and of studies with values that
    fit it.
    """
    studies = [
        name for name, section in STUDY_SECTIONS.items() if "state_init" in section.model_fields
    ]
    first = {"state_init": "input"}
    return {"model": first | {"injection": "none"}} | {
        name: {"state_init": ["input"]} for name in studies
    }


def tiny(**sections: Any) -> Config:
    """The run of the preset tiny with some keys replaced."""
    (run,) = runs({"preset": "tiny"} | sections).values()
    return run


def project(**config: Any) -> Runs:
    """What the rules compute for the preset tiny with some keys replaced."""
    return Runs({"preset": "tiny"} | config, ROOT / "scripts")


def of(run: str = "tiny", **wildcards: str) -> SimpleNamespace:
    """The wildcards of a job."""
    return SimpleNamespace(run=run, **wildcards)


def saved_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Bytes that a forward pass keeps for the backward pass, besides the parameters."""
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (
                storage.nbytes(),
                tensor,
            )  # with the tensor, so that no address is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _ = run()
    return sum(size for size, _ in kept.values())


def shard_part(ids: np.ndarray) -> dict[str, Any]:
    """What tokens.json says of a file with these ids."""
    return {"count": len(ids), "sha256": hashlib.sha256(ids.tobytes()).hexdigest()}
