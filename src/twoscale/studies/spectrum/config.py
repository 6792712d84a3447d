"""The config section of the spectrum."""

from typing import Annotated, Literal

from pydantic import Field

from twoscale.config.sections import CoreConfig
from twoscale.config.types import AtLeastTwo, Count, InBatches, Number, key


class SpectrumConfig(InBatches):
    """Eigenvalues of loop steps at their fixed points, in float64, for every checkpoint
    (results/spectrum.pdf).
    """

    tokens: Count = key(
        4096,
        "Held-out tokens per checkpoint, in whole sequences, whose trajectories are followed to"
        " their fixed points.",
    )
    exact_tokens: Count = key(
        2048,
        "Number of these tokens, in whole sequences, whose diagonal Jacobian blocks are computed.",
    )
    checkpoints: Literal["all", "last"] = key("all", "Checkpoints to analyse.")
    steps: AtLeastTwo = key(
        512,
        "Maximum number of loop steps to a fixed point. A token has no fixed point if its update,"
        " or the update of an "
        "earlier token, is still above the rounding floor after this many steps.",
    )
    window: Annotated[int, Field(ge=4), Number] = key(
        16,
        "Number of last updates above the rounding floor used to measure the rate and angle of a"
        " trajectory; at most "
        "the second half of the trajectory.",
    )
    dense_size: Count = key(
        256,
        "Largest model.hidden_size for which all eigenvalues of a block are computed. Above it,"
        " Arnoldi's method "
        "finds the leading one.",
    )
    batch_size: Count = key(2, "Sequences per batch; determines the memory use.")
    dtype: Literal["float64"] = key(
        "float64",
        "Precision. In float32, a trajectory reaches the rounding floor before its angle"
        " converges.",
    )

    def exact_sequences(self, config: CoreConfig) -> int:
        """Whole sequences in spectrum.exact_tokens, at least one, at most those in
        spectrum.tokens.
        """
        return min(config.sequences("spectrum", "exact_tokens"), config.sequences("spectrum"))


SECTIONS = {"spectrum": SpectrumConfig}
