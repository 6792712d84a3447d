"""Checks of which models can be released, and the released part of their config."""

from twoscale.base import InputError
from twoscale.config import ModelConfig

# Keys of the section `model` that say where a model comes from; a released model comes from its folder.
ORIGIN = ("architecture", "source", "repository", "revision", "folder")


def check_released(run: str, model: ModelConfig) -> None:
    """Refuse a model whose weights were not trained here, or whose code no release contains."""
    if model.source == "published":
        found, expected = "a published model", "one that is trained here"
    elif model.architecture != "transformer":
        found = f"model.architecture: {model.architecture}"
        expected = "transformer, the only architecture whose code a release contains"
    else:
        return
    raise InputError(f"results/{run}/export: found {found}, expected {expected}.")
