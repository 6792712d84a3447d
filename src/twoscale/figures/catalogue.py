"""The figures: tables, values, caption and target of each one.

A figure of the paper is a row here, the module figures/<name>.py with a function `draw`, and the
caption workflow/report/<name>.rst. One of a study is a row in its module `study`, a function
`draw_<name>` in its module `draw`, and a caption in its folder. The function takes the tables of
`inputs` by name, then `values` and `context` as keyword-only arguments. This module imports neither
torch nor matplotlib.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from twoscale.base import study_parts
from twoscale.config.data import text_label

if TYPE_CHECKING:
    from twoscale.config import Config


@dataclass(frozen=True)
class Figure:
    """One figure, drawn by the rule plot_<name> and shown as results/<name>.pdf."""

    name: str  # of the figure, its function and its caption
    inputs: Mapping[str, str]  # name of a table -> file of a run with this table
    loops: Callable[["Config"], float] = lambda config: (
        config.trajectories.loops
    )  # steps K named in the figure
    values: Callable[["Config"], dict[str, Any]] = (
        lambda config: {}
    )  # further arguments of the function
    # rule that the figure belongs to, also "all" or the name of a study
    target: str = "supplementary"
    page: bool = False  # whether its target has the page results/<name>.md, too
    title: str = ""  # in the report; by default from `name`
    claims: tuple[int, ...] = ()  # numbers of those that the figure is about
    groups: int = 1  # least number of looped groups that it needs
    training: bool = False  # needs a model that is trained here
    noise: bool = False  # needs a model that draws noise
    projection: bool = False  # needs a model with a projection of state and input
    # whose runs are shown instead of the selected run; the config is that of the first of them
    study: str = ""
    seeds: bool = False  # needs the run under further seeds
    seed_band: bool = False  # shows the range over seeds where `figures.seed_band` asks for it
    # the inputs are tables of the selected run that compare the runs of the study
    compared: bool = False
    # dotted path of a function: table of the figure's name -> its results in a sentence
    sentence: str = ""
    room: str = ""  # folder of the study, filled in by `figures`; empty for those of the paper

    @property
    def function(self) -> str:
        """Dotted path of the function that draws it: `draw` of figures/<name>.py, or `draw_<name>`
        of a study.
        """
        return f"{self.module}.draw_{self.name}" if self.room else f"{self.module}.draw"

    @property
    def module(self) -> str:
        return (
            f"twoscale.studies.{self.room}.draw" if self.room else f"twoscale.figures.{self.name}"
        )

    @property
    def caption_file(self) -> str:
        """File of the caption in the project."""
        further = "" if self.name == self.room else f"_{self.name}"
        return (
            f"src/twoscale/studies/{self.room}/caption{further}.rst"
            if self.room
            else f"workflow/report/{self.name}.rst"
        )

    @property
    def category(self) -> str:
        return "Figures of the paper" if self.target == "all" else "Supplementary figures"

    @property
    def label(self) -> str:
        return self.title or self.name.replace("_", " ").capitalize()

    def problem(self, config: "Config") -> str | None:
        """Why a run with this config does not have the figure: the end of a sentence, or None."""
        groups = len(config.model.groups)
        if groups < self.groups:
            return f"has {groups} looped groups, expected at least {self.groups}"
        if self.training and is_published(config):
            return "has a published model, expected one that is trained here"
        if self.noise and not config.model.draws_noise:
            return (
                "has a model without noise, expected model.state_init: noise, or another one with"
                " noise"
            )
        if self.projection and config.model.injection != "projection":
            return "has a model without a projection, expected model.injection: projection"
        return one_seed(config) if self.seeds else None


def one_seed(config: "Config") -> str | None:
    """The end of a sentence about a run without further seeds, or None."""
    if set(config.seeds) <= {config.seed}:
        return (
            "has one seed, expected further ones in the config key seeds, such as seeds: [1337,"
            " 1338, 1339]"
        )
    return None


def table(*names: str, **files: str) -> dict[str, str]:
    """Inputs in the folder of tables: tables in files of the same name, and `files` with tables of
    another name.
    """
    return {
        name: f"tables/{file}.parquet"
        for name, file in (dict(zip(names, names, strict=True)) | files).items()
    }


def report_values(run: str, config: "Config") -> dict[str, Any]:
    return {"run": run, "text": text_label(config.data), "published": is_published(config)}


def caption_values(figure: Figure, config: "Config") -> dict[str, Any]:
    """Further values that the caption of a figure may quote: the config, and text made of it."""
    return {
        "config": config,
        "loops": figure.loops(config),
        "after": "as published"
        if is_published(config)
        else f"after {config.train.iterations} iterations",
        "groups": ", ".join(config.model.group_labels).replace("-", "–"),
        "boundaries": ", ".join(config.model.boundary_labels)
        .replace("->", " → ")
        .replace("-", "–"),
        # empty for one seed
        "seeds": ", ".join(map(str, dict.fromkeys((config.seed, *config.seeds))))
        if one_seed(config) is None
        else "",
    }


def is_published(config: "Config") -> bool:
    return config.model.source == "published"


def exit_max_loops(config: "Config") -> float:
    return config.exits.max_loops


def reference_state(config: "Config") -> dict[str, Any]:
    return {"reference_state": config.figures.dlr_reference_state}


def reading(config: "Config") -> dict[str, Any]:
    return {"reading": config.figures.reading}


_paper = partial(Figure, target="all")
PAPER = (
    _paper(
        *("fig1", table("state_paths")),
        values=lambda config: {"tokens": config.figures.fig1_tokens},
        title="Fig. 1, trajectories",
        claims=(1, 6),
    ),
    _paper(
        "fig2",
        table("drift"),
        values=reference_state,
        title="Fig. 2, drift",
        claims=(6,),
        seed_band=True,
    ),
    _paper(
        *("fig3", table("loop_metrics")),
        values=reading,
        title="Fig. 3, step norms and angles",
        claims=(1, 2, 3, 12),
        seed_band=True,
    ),
    _paper(
        *("fig4", table("exit_latency", "exit_quality", "exit_loops", "exit_cost_matched")),
        loops=exit_max_loops,
        title="Fig. 4, exit criteria",
        claims=(7, 8, 9, 10, 11, 14, 15),
    ),
    _paper(
        *("fig5", table("loop_metrics")),
        values=reading,
        title="Fig. 5, angles over all loop steps",
        claims=(3, 4, 5),
        seed_band=True,
    ),
)


@cache
def figures() -> tuple[Figure, ...]:
    """The figures of the paper, then those of the studies."""
    rows = [(study, getattr(part, "FIGURES", ())) for study, part in study_parts().items()]
    return PAPER + tuple(
        replace(figure, room=study) for study, figures in rows for figure in figures
    )


def snapshot_figures(figures: Iterable[Figure], chosen: Iterable[Figure] = ()) -> list[Figure]:
    """Those of `figures` that a snapshot has: the figures of the paper, that of training, and the
    chosen ones.
    """
    chosen = list(chosen)
    return [
        figure
        for figure in figures
        if figure.target == "all" or figure.name == "training" or figure in chosen
    ]
