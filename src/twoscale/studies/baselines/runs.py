"""The runs of the study: models without loops, as overrides of the config of the looped one.

Of the same parameters: as many layers, each applied once, and an MLP that is wider by the parameters of the
projections. Of the same FLOPs: more layers of the same size, so that a training pass costs as much per token as that of
the looped model at its mean loop count. Saunshi et al. (2025, arXiv 2502.17416) compare a k-layer model that is looped
L times with these two, k and k L layers. All see the same tokens, so equal FLOPs per token are equal FLOPs of training.
"""

from typing import Any

from twoscale.base import InputError
from twoscale.config import Config, checked, complete, merge
from twoscale.model.flops import parameters
from twoscale.training.plan import mean_flops_per_token

LOOPED = "looped"
UNTRAINED = "untrained"
BASELINES = ("parameters", "flops")  # what they have in common with the looped model


def runs(selected: Config) -> dict[str, Any]:
    """Name -> overrides of the baselines of a run, and of the looped model if the study has overrides.

    A run without looped groups has none. Raises InputError for a model that is too large to be counted.
    """
    config = _under_overrides(selected)
    if not config.model.groups:
        return {}
    looped: dict[str, dict[str, Any]] = {LOOPED: {}} if selected.baselines.overrides else {}
    try:
        found = {"parameters": same_parameters(config), "flops": same_flops(config)}
    except (OverflowError, ValueError) as error:  # infinite FLOPs
        raise InputError("config key model: found infinite FLOPs per token, expected a smaller model.") from error
    train = {} if config.train.exit_gate is None else {"train": {"exit_gate": None}}  # no loops to leave
    return looped | {name: {"model": keys} | train for name, keys in found.items()}


def _under_overrides(selected: Config) -> Config:
    values = complete(selected)
    del values["model"]["vocab_size"]  # follows from the tokenizer
    return checked(merge(values, selected.baselines.overrides))


def same_parameters(config: Config) -> dict[str, Any]:
    """Keys of `model` without loops, with the width of the MLP at which the parameters are nearest."""
    model = config.model.model_copy(update=_without_loops())
    wider = model.model_copy(update={"mlp_size": model.mlp_width + 1})
    each = parameters(wider) - parameters(model)
    return _without_loops() | {
        "mlp_size": model.mlp_width + round((parameters(config.model) - parameters(model)) / each)
    }


def same_flops(config: Config) -> dict[str, Any]:
    """Keys of `model` without loops, with the number of layers at which the training FLOPs per token are nearest."""
    one, two = (_training_flops(config, _without_loops() | {"num_layers": layers}) for layers in (1, 2))
    return _without_loops() | {"num_layers": max(1, 1 + round((_training_flops(config, {}) - one) / (two - one)))}


def _without_loops() -> dict[str, Any]:
    return {"groups": [], "loop_norm": False}  # loop_norm is the final norm of a looped last layer


def _training_flops(config: Config, keys: dict[str, Any]) -> float:
    train = config.train.model_copy(update={"exit_gate": None}) if keys else config.train
    return mean_flops_per_token(config.model.model_copy(update=keys), train).total
