"""Config of the study."""

from typing import Any

from twoscale.config.types import Section, key


class BaselinesConfig(Section):
    """Non-looped baselines, with the same number of parameters and with the same training FLOPs per token as the looped
    model. `snakemake baselines` trains them on the same batches with every seed and compares the held-out
    cross-entropy.
    """

    overrides: dict[str, Any] = key(
        {},
        "Config sections for these runs, which override all other layers. If any are given, the looped model is "
        "trained again with them; otherwise the run itself is used.",
    )


SECTIONS = {"baselines": BaselinesConfig}
