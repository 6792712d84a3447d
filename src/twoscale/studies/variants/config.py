"""Config of the study."""

from typing import Annotated, Any

from twoscale.config.types import AdapterInit, Distinct, Sandwich, Section, StateInit, key

VARIANT_OVERRIDES = {
    "train": {"iterations": 5000, "checkpoint_every": 5000, "early_checkpoints": [], "lr_decay_iterations": 5000}
}


class VariantsConfig(Section):
    """Choices that the paper leaves open. `snakemake variants` trains the model with every combination of them."""

    sandwich: Annotated[tuple[Sandwich, ...], *Distinct] = key(("post_residual", "branch"), "Values of model.sandwich.")
    adapter_init: Annotated[tuple[AdapterInit, ...], *Distinct] = key(
        ("random", "blend"), "Values of model.adapter_init."
    )
    state_init: Annotated[tuple[StateInit, ...], *Distinct] = key(("noise", "input"), "Values of model.state_init.")
    overrides: dict[str, Any] = key(
        VARIANT_OVERRIDES, "Config sections for these runs, which override all other layers."
    )


SECTIONS = {"variants": VariantsConfig}
