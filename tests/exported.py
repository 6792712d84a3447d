"""Exports of small models with all kinds of layers and loops."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.small import model_config
from twoscale.config import BYTES_VOCAB_SIZE, ConfigSlice, plain
from twoscale.data.tokenizer import Tokenizer, byte_level
from twoscale.export.folder import write_export
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import LoopedTransformer, initialise

SEED = 11
MAX_LOOPS = 5
CONTEXT = 24
ITERATIONS = (0, 20)
SCALING = {
    "factor": 4.0,
    "low_frequency_factor": 1.0,
    "high_frequency_factor": 4.0,
    "original_context_length": 8,
}

# What an exported model may be: keys of `model` that differ from those of `tests.small`.
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "branch": {"sandwich": "branch"},
    "pre": {"norms": "pre"},
    "post": {"norms": "post", "exit_norm": "final_norm"},
    "input": {"state_init": "input"},
    "input_plus_noise": {"state_init": "input_plus_noise", "state_std": 0.1},
    "zero": {"state_init": "zero"},
    "loop_noise": {"loop_noise": 0.2},
    "blend": {"adapter_init": "blend", "adapter_share": 0.25},
    "none": {"injection": "none", "state_init": "input"},
    "rotary": {"positions": "rotary"},
    "halves": {"positions": "rotary", "rotary_pairs": "halves", "rotary_scaling": SCALING},
    "grouped_heads": {"num_heads": 4, "num_kv_heads": 2, "qk_bias": True, "qk_norm": True},
    "gated": {"mlp": "gated", "mlp_size": 12, "embedding_scale": 1.0, "vocab_multiple": 1},
    "untied": {"tied_head": False},
    "gate": {"exit_gate": True},
    "parcae": {
        "positions": "rotary",
        "rotary_channels": 2,
        "injection": "diagonal",
        "exit_projection": True,
    }
    | {
        "qk_norm": "head",
        "input_norm": True,
        "looped_kv_heads": 1,
        "looped_mlp_size": 12,
        "logit_softcap": 3.0,
    }
    | {"value_embeddings": (2, 4)},
    "sum": {"injection": "add", "activation": "gelu"},
    "ouro": {
        "groups": ((1, 2, 3, 4),),
        "loop_norm": True,
        "injection": "none",
        "state_init": "input",
    },
    "plain": {"groups": ()},
}


class Exported(NamedTuple):
    """An export, and what it was made from: the model of its last checkpoint, in float64."""

    folder: Path
    model: LoopedTransformer
    tokenizer: Tokenizer


def checkpoint(folder: Path, iteration: int, **changes: Any) -> Path:
    """A checkpoint with random values in every parameter, also in those that start at zero or
    one.
    """
    config = model_config(**{"vocab_size": BYTES_VOCAB_SIZE, "context_length": CONTEXT} | changes)
    weights = initialise(config, iteration).state_dict()
    source = torch.Generator().manual_seed(iteration)
    weights = {
        name: w + 0.1 * torch.randn(w.shape, generator=source) for name, w in weights.items()
    }
    path = folder / f"iteration_{iteration:06d}.safetensors"
    header = Header(
        "weights", iteration, 64 * iteration, {"seed": SEED, "model": plain(config)}, {}
    )
    checkpoints.save(path, weights, header)
    return path


def job(**changes: Any) -> ConfigSlice:
    """The config of the job that exports such checkpoints."""
    model = model_config(**{"vocab_size": BYTES_VOCAB_SIZE, "context_length": CONTEXT} | changes)
    return ConfigSlice(
        {"run": "small", "seed": SEED, "max_loops": MAX_LOOPS, "model": plain(model)}
    )


def export(folder: Path, **changes: Any) -> Exported:
    """The export of two checkpoints of a model with these changes, in `folder` / "release"."""
    paths = [checkpoint(folder / "checkpoints", iteration, **changes) for iteration in ITERATIONS]
    release, config = folder / "export", job(**changes)
    write_export(release, paths, byte_level(), None, config, {"README.md": "A card."})
    model, _ = checkpoints.load_model(paths[-1], config.model, torch.float64, "cpu")
    return Exported(release, model, byte_level())
