"""The runs of the study: each start of the projection under each first state and norm."""

import itertools
from typing import Any

from twoscale.config import Config
from twoscale.config.definitions import init_name
from twoscale.config.model import HALF, model_keys

KEYS = ("adapter_init", "adapter_share", "state_init", "sandwich")


def runs(selected: Config) -> dict[str, Any]:
    """Name <share or random>-<state_init>-<sandwich> -> overrides; none for a model without a projection."""
    if selected.model.injection != "projection":
        return {}
    study = selected.adapter_init
    initialisations = [("blend", share) for share in study.shares] + [("random", HALF)] * study.random
    found = {}
    for (init, share), state_init, sandwich in itertools.product(initialisations, study.state_init, study.sandwich):
        name = f"{init_name(init, share)}-{state_init}-{sandwich}"
        found[name] = {"model": model_keys(KEYS, (init, share, state_init, sandwich))}
    return found
