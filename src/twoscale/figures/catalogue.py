"""The figures: tables, values, caption and target of each one.

A figure of the paper is a row here, the module figures/<name>.py with a function `draw`, and the
caption workflow/report/<name>.rst. One of a study is a row in its module `study`, a function
`draw_<name>` in its module `draw`, and a caption in its folder. The function takes the tables of
`inputs` by name, then `values` and `context` as keyword-only arguments. This module imports neither
torch nor matplotlib.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
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
    # loop steps K that the figure names
    loops: Callable[["Config"], float] = lambda config: config.trajectories.loops
    # further arguments of the function
    values: Callable[["Config"], dict[str, Any]] = lambda config: {}
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
    study_folder: str = ""  # filled in by `figures`; empty for those of the paper

    @property
    def module(self) -> str:
        if self.study_folder:
            return f"twoscale.studies.{self.study_folder}.draw"
        return f"twoscale.figures.{self.name}"

    @property
    def function(self) -> str:
        """Dotted path of the function that draws the figure."""
        return f"{self.module}.draw_{self.name}" if self.study_folder else f"{self.module}.draw"

    @property
    def caption_file(self) -> str:
        """File of the caption in the project."""
        if not self.study_folder:
            return f"workflow/report/{self.name}.rst"
        further = "" if self.name == self.study_folder else f"_{self.name}"
        return f"src/twoscale/studies/{self.study_folder}/caption{further}.rst"

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
            expected = "expected model.state_init: noise, or another one with noise"
            return f"has a model without noise, {expected}"
        if self.projection and config.model.injection != "projection":
            return "has a model without a projection, expected model.injection: projection"
        if self.seeds and not _further_seeds(config):
            example = "seeds: [1337, 1338, 1339]"
            return f"has one seed, expected further ones in the config key seeds, such as {example}"
        return None


def _further_seeds(config: "Config") -> set[int]:
    return {*config.seeds} - {config.seed}


def inputs_from(*names: str, **files: str) -> dict[str, str]:
    """The `inputs` of a figure in the folder of tables.

    Tables in files of the same name, then `files`, name of the table -> name of its file.
    """
    of_tables = {name: name for name in names} | files
    return {name: f"tables/{file}.parquet" for name, file in of_tables.items()}


def report_values(run: str, config: "Config") -> dict[str, Any]:
    """Values that every caption of the report may quote."""
    return {"run": run, "text": text_label(config.data), "published": is_published(config)}


def caption_values(figure: Figure, config: "Config") -> dict[str, Any]:
    """Further values that the caption of a figure may quote: the config, and text made of it."""
    # a hyphen is printed as a dash: group 5–6, boundary 4 → 5–6
    groups = ", ".join(config.model.group_labels).replace("-", "–")
    boundaries = ", ".join(config.model.boundary_labels).replace("->", " → ").replace("-", "–")
    seeds = dict.fromkeys((config.seed, *config.seeds)) if _further_seeds(config) else ()
    trained = f"after {config.train.iterations} iterations"
    return {
        "config": config,
        "loops": figure.loops(config),
        "after": "as published" if is_published(config) else trained,
        "groups": groups,
        "boundaries": boundaries,
        "seeds": ", ".join(map(str, seeds)),  # empty for one seed
    }


def is_published(config: "Config") -> bool:
    return config.model.source == "published"


def exit_max_loops(config: "Config") -> float:
    return config.exits.max_loops


def reference_state(config: "Config") -> dict[str, Any]:
    return {"reference_state": config.figures.dlr_reference_state}


def reading(config: "Config") -> dict[str, Any]:
    return {"reading": config.figures.reading}


PAPER = (
    Figure(
        "fig1",
        inputs_from("state_paths"),
        values=lambda config: {"tokens": config.figures.fig1_tokens},
        target="all",
        title="Fig. 1, trajectories",
        claims=(1, 6),
    ),
    Figure(
        "fig2",
        inputs_from("drift"),
        values=reference_state,
        target="all",
        title="Fig. 2, drift",
        claims=(6,),
        seed_band=True,
    ),
    Figure(
        "fig3",
        inputs_from("loop_metrics"),
        values=lambda config: {**reading(config), "dtype": config.trajectories.dtype},
        target="all",
        title="Fig. 3, step norms and angles",
        claims=(1, 2, 3, 12),
        seed_band=True,
    ),
    Figure(
        "fig4",
        inputs_from(
            "exit_latency", "exit_quality", "exit_loops", "exit_cost_matched", "exit_costs"
        ),
        loops=exit_max_loops,
        target="all",
        title="Fig. 4, exit criteria",
        claims=(7, 8, 9, 10, 11, 14, 15, 16),
    ),
    Figure(
        "fig5",
        inputs_from("loop_metrics"),
        values=reading,
        target="all",
        title="Fig. 5, angles over all loop steps",
        claims=(3, 4, 5),
        seed_band=True,
    ),
)


@cache
def figures() -> tuple[Figure, ...]:
    """The figures of the paper, then those of the studies."""
    found = [*PAPER]
    for study, part in study_parts().items():
        rows = getattr(part, "FIGURES", ())
        found += [replace(figure, study_folder=study) for figure in rows]
    return tuple(found)


def snapshot_figures(figures: Iterable[Figure], chosen: Iterable[Figure] = ()) -> list[Figure]:
    """The figures of a snapshot: of the paper, of training, and the chosen ones."""
    names = {"training", *(figure.name for figure in chosen)}
    return [figure for figure in figures if figure.target == "all" or figure.name in names]
