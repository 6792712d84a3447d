"""Config of the study."""

from typing import Annotated

from pydantic import Field

from twoscale.config.types import Count, InBatches, Number, key


class LensConfig(InBatches):
    """What the state of every loop step predicts through the layers behind its group, at the last checkpoint.

    The figure results/lens.pdf has the loop steps 0, the powers of two and the numbers half way between them, the
    mean of training and the last one.
    """

    max_multiple: Annotated[float, Field(ge=1), Number] = key(
        8.0, "Last loop step of the group that is decoded, as a multiple of model.mean_loops."
    )
    other_loops: Count | None = key(
        None, "Loop steps of the groups before and behind the one that is decoded. null: model.mean_loops, rounded."
    )


SECTIONS = {"lens": LensConfig}
