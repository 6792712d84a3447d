"""Eigenvalues of loop steps at their fixed points against paths: results/spectrum.pdf."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twoscale.figures.catalogue import Figure, inputs_from
from twoscale.tables import Column
from twoscale.tables import table as columns

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


TABLES: dict[str, dict[str, Column]] = {
    # One row per (token, group), from a loop that runs to its fixed point (module `measure`). Rates
    # and cosines are measured over the last updates of a path above the rounding floor. Eigenvalues
    # are null in sequences without exact blocks and for tokens without a fixed point; a quantity is
    # also null if there are too few updates to define it. Angles are in radians, 0 … π: a period is
    # 2π / angle loop steps.
    "token_spectrum": columns(
        "iteration sequence document position group",
        exact=("bool", "whether the sequence has exact blocks"),
        converged=("bool", "whether the token and all earlier ones have a fixed point"),
        steps=(
            "int32",
            "loop steps until the updates of the token and all earlier ones are below the"
            " rounding floor; -1: never",
        ),
        rate=("float32", "geometric mean of the ratio of successive step norms"),
        cosine=("float32", "mean cosine of successive updates"),
        leading_modulus=(
            "float32",
            "modulus of the leading eigenvalue of the token's diagonal block",
        ),
        leading_angle=("float32", "angle of the same eigenvalue"),
        prefix_modulus=("float32", "largest leading modulus of the token and all earlier ones"),
        prefix_angle=("float32", "angle of the same eigenvalue"),
        source=(
            "int32",
            "position of the token with the prefix eigenvalue; -1 without exact blocks",
        ),
    ),
    # Agreement of the spectrum's predictions with the paths, one row per (checkpoint, group,
    # prediction, quantity), over tokens that have a fixed point, with 95 % intervals over
    # documents.
    "spectrum": columns(
        "run iteration group prediction quantity tokens",
        prediction=("string", "leading or prefix: the eigenvalue that predicts"),
        quantity=(
            "string",
            "rate, predicted by the modulus, or cosine, predicted by that of the angle",
        ),
        predicted=("float64", "mean prediction over tokens"),
        measured=("float64", "mean measured value over tokens"),
        correlation=("float64", "correlation of predicted and measured over tokens"),
        difference=("float64", "mean absolute difference between predicted and measured"),
        difference_low=("float64", "lower end of the 95 % interval of difference"),
        difference_high=("float64", "upper end of the 95 % interval of difference"),
        nearer=(
            "float64",
            "share of tokens nearer to this prediction than to the leading eigenvalue's, where"
            " the two differ",
        ),
    ),
}

FIGURES = (
    Figure(
        "spectrum",
        inputs_from("token_spectrum", "spectrum"),
        loops=lambda config: config.spectrum.steps,
        title="Spectrum of a loop",
        claims=(3, 4, 5),
        sentence="twoscale.studies.spectrum.draw.summary",
    ),
)


def at_checkpoints(runs: "Runs", pattern: str) -> Callable:
    """Input function: `pattern` at the checkpoints of spectrum.checkpoints."""
    files = runs.at_checkpoints(pattern)

    def chosen(wildcards: Any) -> list[str]:
        if runs[wildcards.run].spectrum.checkpoints == "last":
            return files(wildcards)[-1:]
        return files(wildcards)

    return chosen
