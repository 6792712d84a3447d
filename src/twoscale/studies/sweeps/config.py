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


def _trained(iterations: int, early: list[int]) -> dict[str, Any]:
    train = {"iterations": iterations, "checkpoint_every": iterations, "early_checkpoints": early}
    return {"train": train | {"lr_decay_iterations": iterations}}


SANDWICH = key(("post_residual", "branch"), "Values of model.sandwich.")
STATE_INIT = key(("noise", "input"), "Values of model.state_init.")


class VariantsConfig(Section):
    """Choices that the paper leaves open. `snakemake variants` trains the model with every
    combination of them.
    """

    sandwich: Annotated[tuple[Sandwich, ...], *Distinct] = SANDWICH
    adapter_init: Annotated[tuple[AdapterInit, ...], *Distinct] = key(
        ("random", "blend"), "Values of model.adapter_init."
    )
    state_init: Annotated[tuple[StateInit, ...], *Distinct] = STATE_INIT
    overrides: dict[str, Any] = key(
        _trained(5000, []), "Config sections for these runs, which override all other layers."
    )


class AdapterInitConfig(Section):
    """Adapter initialisations. `snakemake adapter_init` trains the model from each of them, with
    each initial state and norm position.
    """

    shares: Annotated[tuple[WholeShare, ...], *Unique] = key(
        (0.0, 0.25, 0.5, 0.75, 1.0), "Values of model.adapter_share, with adapter_init: blend."
    )
    random: Flag = key(True, "Whether to include adapter_init: random.")
    state_init: Annotated[tuple[StateInit, ...], *Distinct] = STATE_INIT
    sandwich: Annotated[tuple[Sandwich, ...], *Distinct] = SANDWICH
    # early checkpoints: the question is also when the angles are where the paper has them
    overrides: dict[str, Any] = key(
        _trained(5000, [500, 1000, 2000]),
        "Config sections for these runs, which override all other layers.",
    )

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
        "Config sections for these runs, which override all other layers. If any are given, the"
        " looped model is "
        "trained again with them; otherwise the run itself is used.",
    )


SECTIONS = {
    "adapter_init": AdapterInitConfig,
    "baselines": BaselinesConfig,
    "variants": VariantsConfig,
}
