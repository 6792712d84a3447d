"""Config of the study."""

from typing import Annotated, Any

from twoscale.config.types import AdapterInit, Distinct, Sandwich, Section, StateInit, key

VARIANT_OVERRIDES = {
    "train": {"iterations": 5000, "checkpoint_every": 5000, "early_checkpoints": [], "lr_decay_iterations": 5000}
}


class VariantsConfig(Section):
    """Choices where the paper is open. `snakemake variants` trains the model under every combination of them."""

    sandwich: Annotated[tuple[Sandwich, ...], *Distinct] = key(("post_residual", "branch"), "Values of model.sandwich.")
    adapter_init: Annotated[tuple[AdapterInit, ...], *Distinct] = key(
        ("random", "blend"), "Values of model.adapter_init."
    )
    state_init: Annotated[tuple[StateInit, ...], *Distinct] = key(("noise", "input"), "Values of model.state_init.")
    overrides: dict[str, Any] = key(
        VARIANT_OVERRIDES, "Config sections of these runs, which take precedence over all other layers."
    )


SECTIONS = {"variants": VariantsConfig}
