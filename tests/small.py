"""Small configurations that the unit tests share: the paper's structure at a size that runs in milliseconds."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from twoscale import config

ROOT = Path(__file__).parents[1]
PRESETS = ROOT / "workflow" / "presets"

MODEL = {
    "layers": 4,
    "heads": 2,
    "width": 8,
    "block": 8,
    "vocabulary": 37,
    "groups": ((2,), (3,)),
    "mean_loops": 3,
    "loops_sigma": 0.5,
    "sandwich": "post_residual",
    "state_init": "noise",
    "loop_noise": 0.0,
    "adapter_init": "random",
    "exit_norm": "none",
}

TRAIN = {
    "iterations": 20,
    "checkpoint_every": 10,
    "early_checkpoints": (),
    "save_seconds": 1000.0,
    "order": "permutation",
    "batch": 4,
    "micro_batches": 1,
    "processes": 1,
    "compile": False,
    "recompute": False,
    "prefetch": True,
    "peak_tflops": None,
    "cpu_threads": 1,
    "learning_rate": 1e-2,
    "min_learning_rate": 1e-3,
    "warmup_iterations": 5,
    "lr_decay_iterations": 20,
    "beta1": 0.9,
    "beta2": 0.95,
    "weight_decay": 0.1,
    "clip": 1.0,
    "backprop_depth": None,
    "held_out_every": 5,
    "held_out_sequences": 2,
    "held_out_loops": 3,
}

KINDS = {
    "window": 16,
    "converging_rate": 0.95,
    "max_period": 8,
    "return_tolerance": 0.25,
    "straightness": 0.5,
}


def model_config(**changes: Any) -> config.ModelConfig:
    return config.ModelConfig(**(MODEL | changes))


def train_config(**changes: Any) -> config.TrainConfig:
    return config.TrainConfig(**(TRAIN | changes))


def learnable_tokens(length: int) -> np.ndarray:
    """Two interleaved cycles of ids: uint16 (length,)."""
    numbers = np.arange(length)
    return np.where(numbers % 2, 20 + numbers % 6, numbers % 10).astype("<u2")


def preset(name: str) -> dict[str, Any]:
    return yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
