"""Config of the study."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from twoscale.config.types import AtLeastTwo, Count, Fraction, InBatches, Natural, Number, key, require

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class SpectrumConfig(InBatches):
    """Eigenvalues of loop steps at their fixed points, in float64, for every checkpoint (results/spectrum.pdf)."""

    tokens: Count = key(
        4096, "Held-out tokens per checkpoint whose paths are followed to their fixed points, in whole sequences."
    )
    exact_tokens: Count = key(
        2048,
        "Held-out tokens among these whose diagonal blocks are computed, in whole sequences. Two further paths are run "
        "for each: with all earlier tokens held, and with one token slowed.",
    )
    checkpoints: Literal["all", "last"] = key("all", "Checkpoints to analyse.")
    steps: AtLeastTwo = key(
        512,
        "Maximum number of loop steps to a fixed point. A token whose update, or that of an earlier token, then is "
        "above the rounding floor has none.",
    )
    window: Annotated[int, Field(ge=4), Number] = key(
        16,
        "Last updates of a path above the rounding floor, from which its rate and its angle are measured; at most the "
        "second half of the path.",
    )
    tolerance: Fraction = key(
        1e-3,
        "Threshold of the column loops: a step norm below this fraction of the norm of the state, as for the criterion "
        "step_norm_relative.",
    )
    dense_size: Count = key(
        256,
        "Largest model.hidden_size at which all eigenvalues of a block are computed. Beyond, Arnoldi's method finds "
        "the leading one.",
    )
    slowed_position: Natural = key(
        4, "Position of the token that is slowed in every sequence; less than model.context_length - 1."
    )
    slow_factor: Fraction = key(0.2, "Fraction of each of its steps that the slowed token takes.")
    batch_size: Count = key(2, "Sequences at a time; limits the memory.")
    dtype: Literal["float64"] = key(
        "float64", "Precision. In float32 a path ends at the rounding floor before its angle settles."
    )

    def check(self, config: "CoreConfig") -> None:
        last = config.model.context_length - 1
        expected = f"less than model.context_length - 1 = {last}"
        require(self.slowed_position < last, "spectrum.slowed_position", self.slowed_position, expected)

    def exact_sequences(self, config: "CoreConfig") -> int:
        """Whole sequences in spectrum.exact_tokens, at least one, at most those in spectrum.tokens."""
        return min(config.sequences("spectrum", "exact_tokens"), config.sequences("spectrum"))


SECTIONS = {"spectrum": SpectrumConfig}
