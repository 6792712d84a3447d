"""Config of the study."""

from typing import Any

from twoscale.config.types import Section, key


class BaselinesConfig(Section):
    """Models without loops beside the looped one: of the same parameters, and of the same training FLOPs per token.

    `snakemake baselines` trains them on the same batches under every seed, and compares held-out cross-entropies.
    """

    overrides: dict[str, Any] = key(
        {},
        "Config sections of these runs, which take precedence over all other layers. With any, the looped model is "
        "trained again under them; without, it is the run itself.",
    )


SECTIONS = {"baselines": BaselinesConfig}
