"""Config of the study."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from twoscale.config.exits import Criteria, ExitsConfig, grids
from twoscale.config.types import Count, Fraction, Number, Positive, Section, Unique, key, require

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class CalibrationConfig(Section):
    """Calibration of exit thresholds on held-out documents (results/calibration.pdf). The documents are split into
    three parts: to search a path through the thresholds, from many evaluations to few; to choose thresholds on the
    path; and to report the result. Loop steps, readout, KV slots, precision and batch size are taken from exits.
    """

    criteria: Criteria = key(
        grids(
            step_norm=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
            kl=[1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1],
            acceleration=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
        ),
        "Exit criteria and the thresholds available to a path, for all groups together and for each group. null "
        "removes a criterion that the defaults or the preset include.",
    )
    tokens: Count = key(
        131_072, "Held-out tokens of all three parts, in whole sequences, at most data.held_out_tokens."
    )
    search_share: Fraction = key(0.25, "Share of the documents used to search paths.")
    report_share: Fraction = key(
        0.25,
        "Share of the documents used to report the chosen thresholds. The remaining documents are used to choose them.",
    )
    path_end: Positive = key(
        0.3,
        "A path ends with the first thresholds whose mean cross-entropy on the search documents exceeds the value"
        " at full depth by this many nats per token.",
    )

    def check_keys(self) -> None:
        found, most = self.report_share, 1 - self.search_share
        expected = f"less than {most:g}, so that documents remain besides calibration.search_share"
        require(self.search_share + found < 1, "calibration.report_share", f"{found:g}", expected)

    def exit_grid(self, config: "CoreConfig") -> ExitsConfig:
        return config.exits.model_copy(update={"criteria": self.criteria})

    def sequences(self, config: "CoreConfig") -> int:
        """Whole sequences in calibration.tokens, at most those of the held-out text, at least one."""
        available = (config.data.held_out_tokens - 1) // config.model.context_length
        return max(1, min(config.sequences("calibration"), available))


Guarantees = Annotated[tuple[Positive, ...], *Unique]


class GuaranteesConfig(Section):
    """Quality guarantees, E[clipped loss] <= epsilon; thresholds are chosen separately for each guarantee. A guarantee
    holds with probability 1 - delta over the documents used to choose the threshold, by Learn then Test (arXiv
    2110.01052). The loss compares exits with full depth. It is averaged over the tokens of a unit and clipped to [0,
    clip * epsilon], so nothing is guaranteed about larger losses.
    """

    nats: Guarantees = key(
        (0.01, 0.02, 0.05, 0.1), "Values of epsilon for the increase of the cross-entropy, in nats per token."
    )
    disagreement: Annotated[tuple[Fraction, ...], *Unique] = key(
        (0.01, 0.02, 0.05, 0.1),
        "Values of epsilon for the share of tokens whose most likely next token changes.",
        source="arXiv 2207.07061",
    )
    delta: Fraction = key(0.1, "Probability with which a guarantee may fail.", source="arXiv 2110.01052")
    test: Literal["betting", "hoeffding_bentkus"] = key(
        "betting",
        "p-values of thresholds: betting (arXiv 2010.09686, 2101.02703), which needs fewer units if losses vary "
        "little, or hoeffding_bentkus, the bounds of Hoeffding and Bentkus (arXiv 2110.01052). Both are valid for"
        " any number of units.",
    )
    clip: Annotated[float, Field(gt=1), Number] = key(
        5.0,
        "Losses of a unit are clipped to [0, clip * epsilon], because the test needs a bound; the guarantee is "
        "about the clipped loss. Betting needs at least log(1 / delta) / log(1 + 1 / clip) units, 13 by default.",
    )
    unit: Literal["document", "sequence"] = key(
        "document",
        "Units that the test treats as independent and identically distributed: documents or, if documents are "
        "few and long, sequences. Sequences of one document are not independent, so the guarantee is then "
        "nominal.",
    )

    def check_keys(self) -> None:
        expected = "at least one here or in disagreement"
        require(self.nats or self.disagreement, "guarantees.nats", "none", expected)


SECTIONS = {"calibration": CalibrationConfig, "guarantees": GuaranteesConfig}
