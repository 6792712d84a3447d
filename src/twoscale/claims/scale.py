"""The scale of a run and of the paper. A verdict from a run that is much smaller is marked "small
scale".
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from twoscale import config
from twoscale.model.flops import parameters

SMALL_SCALE = "small scale"
LEAST_SHARE = 0.5  # of the paper's training tokens and of its parameters
HEADER = ("scale", "this run", "the paper", "share")
LABELS = {
    "tokens": "tokens of training",
    "parameters": "parameters",
    "mean_loops": "mean loops r in training",
    "loops": "loop steps measured",
    "seeds": "seeds",
    "hardware": "hardware",
}
MEANING = (
    f"A verdict is marked *{SMALL_SCALE}* where the model has less than half of the paper's"
    " parameters or was trained on less\nthan half of its tokens."
)


@dataclass(frozen=True)
class Scale:
    """Size of a model, and of its training and measurement; see `LABELS`.

    `tokens` is None if unknown, as for published models; `seeds` is the number of trainings.
    """

    tokens: int | None
    parameters: int
    mean_loops: float
    loops: int
    seeds: int = 1
    hardware: str = "not stated"


@dataclass(frozen=True)
class Scales:
    run: Scale
    paper: Scale

    @classmethod
    def of(cls, values: Mapping[str, Mapping[str, Any]]) -> Self:
        return cls(*(Scale(**values[name]) for name in ("run", "paper")))

    def with_run(self, **values: Any) -> Self:
        return replace(self, run=replace(self.run, **values))

    @property
    def plain(self) -> dict[str, dict[str, Any]]:
        return asdict(self)

    @property
    def mark(self) -> str:
        """The column `scale` of the table "claims": `SMALL_SCALE` or nothing."""
        tokens, ours, paper = self.run.tokens, self.run, self.paper
        few_tokens = (
            tokens is not None and paper.tokens is not None and tokens < LEAST_SHARE * paper.tokens
        )
        return SMALL_SCALE if few_tokens or ours.parameters < LEAST_SHARE * paper.parameters else ""

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Rows of a table with the `HEADER`."""
        pairs = [
            (label, getattr(self.run, name), getattr(self.paper, name))
            for name, label in LABELS.items()
        ]
        return [
            (
                label,
                text(ours),
                text(theirs),
                f"{ours / theirs:.2g}" if {type(ours), type(theirs)} == {int} else "",
            )
            for label, ours, theirs in pairs
        ]


def scales(run: "config.Config") -> Scales:
    """The scale of a run, with the kind of its device as hardware, and the paper's, the defaults of
    the config.
    """
    return Scales(_scale(run), replace(_scale(config.Config()), hardware="not stated"))


def _scale(run: "config.Config") -> Scale:
    return Scale(
        None if run.model.source == "published" else run.training_tokens,
        parameters(run.model),
        run.model.mean_loops,
        run.trajectories.loops,
        hardware={"cuda": "GPU", "cpu": "CPU"}[run.compute.device],
    )


def text(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "unknown"
    return f"{value / 1e6:.4g} M" if value >= 1e6 else f"{value:,g}"
