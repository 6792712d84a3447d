"""The config sections of the sweeps: the values that are combined, and overrides of their runs."""

from typing import Annotated, Any

from twoscale.config.types import (
    AdapterInit,
    Distinct,
    Flag,
    Sandwich,
    Section,
    StateInit,
    Unique,
    WholeShare,
    key,
    require,
)

_Sandwiches = Annotated[tuple[Sandwich, ...], *Distinct]
_StateInits = Annotated[tuple[StateInit, ...], *Distinct]
_SANDWICH = key(("post_residual", "branch"), "Values of model.sandwich.")
_STATE_INIT = key(("noise", "input"), "Values of model.state_init.")
_OVERRIDES = "Config sections for these runs, which override all other layers."


def _short_training(*early: int) -> Any:
    """The key `overrides` of runs with checkpoints at `early` iterations and at the last one."""
    train = {
        "iterations": 5000,
        "checkpoint_every": 5000,
        "early_checkpoints": [*early],
        "lr_decay_iterations": 5000,
    }
    return key({"train": train}, _OVERRIDES)


class VariantsConfig(Section):
    """Choices that the paper leaves open. `snakemake variants` trains the model with every
    combination of them.
    """

    sandwich: _Sandwiches = _SANDWICH
    adapter_init: Annotated[tuple[AdapterInit, ...], *Distinct] = key(
        ("random", "blend"), "Values of model.adapter_init."
    )
    state_init: _StateInits = _STATE_INIT
    overrides: dict[str, Any] = _short_training()


class AdapterInitConfig(Section):
    """Adapter initialisations. `snakemake adapter_init` trains the model from each of them, with
    each initial state and norm position.
    """

    shares: Annotated[tuple[WholeShare, ...], *Unique] = key(
        (0.0, 0.25, 0.5, 0.75, 1.0), "Values of model.adapter_share, with adapter_init: blend."
    )
    random: Flag = key(True, "Whether to include adapter_init: random.")
    state_init: _StateInits = _STATE_INIT
    sandwich: _Sandwiches = _SANDWICH
    # early checkpoints: the question is also when the angles are where the paper has them
    overrides: dict[str, Any] = _short_training(500, 1000, 2000)

    def check_keys(self) -> None:
        expected = "at least one unless adapter_init.random is true"
        require(self.shares or self.random, "adapter_init.shares", "none", expected)


class BaselinesConfig(Section):
    """Non-looped baselines, with the same number of parameters and with the same training FLOPs per
    token as the looped model. `snakemake baselines` trains them on the same batches with every seed
    and compares the held-out cross-entropy.
    """

    overrides: dict[str, Any] = key(
        {},
        f"{_OVERRIDES} If any are given, the looped model is trained again with them; otherwise the"
        " run itself is used.",
    )


SECTIONS = {
    "adapter_init": AdapterInitConfig,
    "baselines": BaselinesConfig,
    "variants": VariantsConfig,
}
