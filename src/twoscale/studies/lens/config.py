"""Config of the study."""

from typing import Annotated

from pydantic import Field

from twoscale.config.types import Count, InBatches, Number, key


class LensConfig(InBatches):
    """Predictions from the state after every loop step, through the layers after its group, at the last checkpoint.
    results/lens.pdf shows loop step 0, powers of two and the numbers halfway between them, the mean loop count of
    training, and the last loop step.
    """

    max_multiple: Annotated[float, Field(ge=1), Number] = key(
        8.0, "Last loop step to decode, as a multiple of model.mean_loops."
    )
    other_loops: Count | None = key(
        None, "Loop steps of the groups before and after the decoded one. null: model.mean_loops, rounded."
    )


SECTIONS = {"lens": LensConfig}
