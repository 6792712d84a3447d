"""Config of the study."""

from typing import Annotated

from pydantic import AfterValidator, Field

from twoscale.config.loop_counts import MULTIPLES
from twoscale.config.types import InBatches, NonNegative, Positive, key


class DepthCardConfig(InBatches):
    """Quality and geometry at multiples of the trained loops, at the last checkpoint (results/depth-card.md)."""

    multiples: Annotated[tuple[Positive, ...], Field(min_length=1), AfterValidator(lambda v: tuple(sorted(set(v))))] = (
        key(MULTIPLES, "Loop counts, the same in every group, as multiples of model.mean_loops. 1 is always included.")
    )
    tolerance: NonNegative = key(
        0.01,
        "The plateau consists of the loop counts whose loss is at most this many nats per token above the lowest one.",
    )
    unlooped: str | None = key(
        None,
        "Non-looped run to compare with, such as one of `runs`, on the same held-out text. The loop gain is the loss "
        "of this run minus the loss of the looped model at the trained loop count. null: the baseline with the same "
        "number of parameters, if it is trained and baselines.overrides is empty.",
    )


SECTIONS = {"depth_card": DepthCardConfig}
