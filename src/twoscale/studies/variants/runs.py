"""The runs of the study: each combination of the values in `variants`."""

import itertools
from typing import Any

from twoscale.config.model import model_keys
from twoscale.config.sections import Config

KEYS = ("sandwich", "adapter_init", "state_init")  # keys of `model` that the variants combine


def runs(selected: Config) -> dict[str, Any]:
    """Name <sandwich>-<adapter_init>-<state_init> -> overrides."""
    combinations = itertools.product(*(getattr(selected.variants, key) for key in KEYS))
    return {"-".join(values): {"model": model_keys(KEYS, values)} for values in combinations}
