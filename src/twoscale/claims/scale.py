"""The scale of a run and of the paper; verdicts of much smaller runs are marked."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from twoscale import config
from twoscale.claims.words import NOT_HERE, SMALL_SCALE
from twoscale.model.flops import parameters

_LEAST_SHARE = 0.5  # of the paper's training tokens and of its parameters
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
    " parameters or was trained on less\nthan half of its tokens. A claim that does not hold reads"
    f" *{NOT_HERE}* there, and *moves towards the paper* if\nevery number that decides against it"
    " moves towards its bounds along a line over the checkpoints after warm-up."
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
        shares = [self.run.parameters / self.paper.parameters]
        if self.run.tokens is not None and self.paper.tokens is not None:
            shares.append(self.run.tokens / self.paper.tokens)
        return SMALL_SCALE if min(shares) < _LEAST_SHARE else ""

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Rows of a table with the `HEADER`."""
        rows = []
        for name, label in LABELS.items():
            ours = getattr(self.run, name)
            paper = getattr(self.paper, name)
            are_counts = isinstance(ours, int) and isinstance(paper, int)
            share = f"{ours / paper:.2g}" if are_counts else ""
            rows.append((label, text(ours), text(paper), share))
        return rows


def scales(run: "config.Config") -> Scales:
    """The scale of a run, and the paper's, which is that of the defaults of the config.

    The hardware of the run is the kind of its device, and that of the paper is not stated.
    """
    paper = _scale(config.Config())
    return Scales(_scale(run), replace(paper, hardware="not stated"))


def _scale(run: "config.Config") -> Scale:
    is_published = run.model.source == "published"
    return Scale(
        tokens=None if is_published else run.training_tokens,
        parameters=parameters(run.model),
        mean_loops=run.model.mean_loops,
        loops=run.trajectories.loops,
        hardware={"cuda": "GPU", "cpu": "CPU"}[run.compute.device],
    )


def text(value: float | str | None) -> str:
    """A cell of the table of scales: millions from 1e6 on, and "unknown" for nothing."""
    if value is None or isinstance(value, str):
        return value or "unknown"
    return f"{value / 1e6:.4g} M" if value >= 1e6 else f"{value:,g}"
