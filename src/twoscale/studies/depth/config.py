"""The config sections of the lens and the depth card."""

from typing import Annotated

from pydantic import AfterValidator, Field

from twoscale.config.definitions import MULTIPLES
from twoscale.config.types import Count, InBatches, NonNegative, Number, Positive, key


class LensConfig(InBatches):
    """Predictions from the state after every loop step, through the layers after its group, at the
    last checkpoint. results/lens.pdf shows loop step 0, powers of two and the numbers halfway
    between them, the mean loop count of training, and the last loop step.
    """

    max_multiple: Annotated[float, Field(ge=1), Number] = key(
        8.0, "Last loop step to decode, as a multiple of model.mean_loops."
    )
    other_loops: Count | None = key(
        None,
        "Loop steps of the groups before and after the decoded one. null: model.mean_loops,"
        " rounded.",
    )


class DepthCardConfig(InBatches):
    """Quality and geometry at multiples of the trained loops, at the last checkpoint
    (results/depth-card.md).
    """

    multiples: Annotated[
        tuple[Positive, ...], Field(min_length=1), AfterValidator(lambda v: tuple(sorted(set(v))))
    ] = key(
        MULTIPLES,
        "Loop counts, the same in every group, as multiples of model.mean_loops. 1 is always"
        " included.",
    )
    tolerance: NonNegative = key(
        0.01,
        "The plateau consists of the loop counts whose loss is at most this many nats per token"
        " above the lowest one.",
    )
    unlooped: str | None = key(
        None,
        "Non-looped run to compare with, such as one of `runs`, on the same held-out text. The"
        " loop gain is the loss "
        "of this run minus the loss of the looped model at the trained loop count. null: not"
        " measured.",
    )


SECTIONS = {"lens": LensConfig, "depth_card": DepthCardConfig}
