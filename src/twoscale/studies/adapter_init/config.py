"""Config of the study."""

from typing import Annotated, Any

from twoscale.config.types import Distinct, Flag, Sandwich, Section, StateInit, Unique, WholeShare, key, require

# more checkpoints than those of the variants: the question is also when the angles are where the paper has them
ADAPTER_INIT_OVERRIDES = {
    "train": {"iterations": 5000, "checkpoint_every": 5000, "early_checkpoints": [500, 1000, 2000]}
    | {"lr_decay_iterations": 5000}
}


class AdapterInitConfig(Section):
    """Adapter initialisations. `snakemake adapter_init` trains the model from each of them, with each initial state
    and norm position.
    """

    shares: Annotated[tuple[WholeShare, ...], *Unique] = key(
        (0.0, 0.25, 0.5, 0.75, 1.0), "Values of model.adapter_share, with adapter_init: blend."
    )
    random: Flag = key(True, "Whether to include adapter_init: random.")
    state_init: Annotated[tuple[StateInit, ...], *Distinct] = key(("noise", "input"), "Values of model.state_init.")
    sandwich: Annotated[tuple[Sandwich, ...], *Distinct] = key(("post_residual", "branch"), "Values of model.sandwich.")
    overrides: dict[str, Any] = key(
        ADAPTER_INIT_OVERRIDES, "Config sections for these runs, which override all other layers."
    )

    def check_keys(self) -> None:
        expected = "at least one unless adapter_init.random is true"
        require(self.shares or self.random, "adapter_init.shares", "none", expected)


SECTIONS = {"adapter_init": AdapterInitConfig}
