"""Config of the study."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from twoscale.config.exits import Criteria, ExitsConfig, grids
from twoscale.config.types import Count, Fraction, Number, Positive, Section, Unique, key, require

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class CalibrationConfig(Section):
    """Thresholds of exit criteria that are calibrated on held-out documents (results/calibration.pdf).

    Documents are divided into three parts: on one a path through the thresholds is searched, from many evaluations to
    few, on one thresholds of the path are chosen, and on one they are reported. Loop steps, readout, KV slots,
    precision and batch size are those of exits.
    """

    criteria: Criteria = key(
        grids(
            step_norm=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
            kl=[1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1],
            acceleration=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
        ),
        "Exit criteria and the thresholds that a path may have, for all groups together and for each group. null "
        "removes a criterion of the defaults or the preset.",
    )
    tokens: Count = key(
        131_072, "Held-out tokens, in whole sequences, of all three parts; all of them if data.held_out_tokens is less."
    )
    search_share: Fraction = key(0.25, "Share of the documents on which paths are searched.")
    report_share: Fraction = key(
        0.25, "Share of the documents on which the chosen thresholds are measured. The others choose them."
    )
    path_end: Positive = key(
        0.3,
        "A path ends with the first thresholds whose mean cross-entropy on the documents of the search is this many "
        "nats per token above that at full depth.",
    )

    def check_keys(self) -> None:
        found, most = self.report_share, 1 - self.search_share
        expected = f"less than {most:g}, so that documents are left beside calibration.search_share"
        require(self.search_share + found < 1, "calibration.report_share", f"{found:g}", expected)

    def exit_grid(self, config: "CoreConfig") -> ExitsConfig:
        return config.exits.model_copy(update={"criteria": self.criteria})

    def sequences(self, config: "CoreConfig") -> int:
        """Whole sequences in calibration.tokens, at most those of the held-out text, at least one."""
        available = (config.data.held_out_tokens - 1) // config.model.context_length
        return max(1, min(config.sequences("calibration"), available))


Guarantees = Annotated[tuple[Positive, ...], *Unique]


class GuaranteesConfig(Section):
    """Guarantees about quality for which thresholds are chosen, each on its own: E[clipped loss] <= epsilon.

    A guarantee holds with probability 1 - delta over the documents that choose the threshold, by Learn then Test
    (arXiv 2110.01052). The loss is that of exits against full depth, a mean over the tokens of a unit, clipped to the
    range from 0 to clip * epsilon; it says nothing about the mean of larger losses.
    """

    nats: Guarantees = key(
        (0.01, 0.02, 0.05, 0.1), "Values of epsilon for the rise of the cross-entropy, nats per token."
    )
    disagreement: Annotated[tuple[Fraction, ...], *Unique] = key(
        (0.01, 0.02, 0.05, 0.1),
        "Values of epsilon for the share of tokens with another most likely next token.",
        source="arXiv 2207.07061",
    )
    delta: Fraction = key(0.1, "Probability with which a guarantee may be broken.", source="arXiv 2110.01052")
    test: Literal["betting", "hoeffding_bentkus"] = key(
        "betting",
        "p-values of thresholds: betting (arXiv 2010.09686, 2101.02703), which needs fewer units where losses vary "
        "little, or the bounds of Hoeffding and Bentkus (arXiv 2110.01052). Both are valid for any number of units.",
    )
    clip: Annotated[float, Field(gt=1), Number] = key(
        5.0,
        "Losses of a unit are clipped to the range from 0 to this multiple of epsilon, because the test needs a bound; "
        "the guarantee is about the clipped loss. With betting, none can be made with fewer units than log(1 / delta) "
        "/ log(1 + 1 / clip), 13 by default.",
    )
    unit: Literal["document", "sequence"] = key(
        "document",
        "What the test takes for independent and alike: documents, or the sequences of all documents, where documents "
        "are few and long. Sequences of one document are not independent, so the guarantee is then nominal.",
    )

    def check_keys(self) -> None:
        expected = "at least one here or in disagreement"
        require(self.nats or self.disagreement, "guarantees.nats", "none", expected)


SECTIONS = {"calibration": CalibrationConfig, "guarantees": GuaranteesConfig}
