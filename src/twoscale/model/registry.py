"""Architectures by name (`model.architecture`): their config class and functions.

A further architecture is a module `twoscale.model.NAME` with a class `Config`, a subclass of
`ModelConfig`, and a value `ARCHITECTURE` of the class below (docs/extending.md).
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from twoscale.config import ModelConfig, TrainConfig, model_config_class
from twoscale.model.flops import Flops, flops_per_token
from twoscale.model.interface import LoopedModel, Noise
from twoscale.model.transformer import LoopedTransformer, initialise

# (model, tokens (B, T), targets (B, T), loops of each group, noise, section `train`) -> what
# training minimises, ()
Loss = Callable[[LoopedModel, Tensor, Tensor, Sequence[int], Noise, TrainConfig], Tensor]


@dataclass(frozen=True)
class Architecture:
    """An architecture: how to configure, build and initialise it."""

    config: type[ModelConfig]  # class of its section `model`
    build: Callable[[ModelConfig], LoopedModel]  # a model with weights that are still to be loaded
    initialise: Callable[[ModelConfig, int], LoopedModel]  # (config, seed) -> an untrained model
    # FLOPs per token of a training pass: (config, loops of each group, backprop_depth)
    flops: Callable[[ModelConfig, Sequence[float], int | None], Flops]
    # None: the mean cross-entropy, or with train.exit_gate the loss of the exit distribution
    loss: Loss | None = None


_TRANSFORMER = Architecture(ModelConfig, LoopedTransformer, initialise, flops_per_token)


def architecture(name: str) -> Architecture:
    """The architecture `name`; an unknown one is an InputError."""
    if name == "transformer":
        return _TRANSFORMER
    return importlib.import_module(model_config_class(name).__module__).ARCHITECTURE


def build(config: ModelConfig) -> LoopedModel:
    return architecture(config.architecture).build(config)
