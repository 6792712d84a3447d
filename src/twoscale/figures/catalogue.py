"""The figures: tables, values, caption and target of each one.

A figure of the paper is a row here, the module figures/<name>.py with a function `draw`, and the caption
workflow/report/<name>.rst; one of a study is a row in its module `study`, with module and caption in its folder. `draw`
takes the tables of `inputs` by name, then `values` and `context` as keyword-only arguments. This module imports neither
torch nor matplotlib.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from twoscale.config import Config, checkpoint_iterations, text_label
from twoscale.discovery import study_parts

CATEGORIES = {"all": "Figures of the paper"}  # by target; the others are supplementary


def _nothing(config: Config) -> dict[str, Any]:
    return {}


def _trajectory_loops(config: Config) -> float:
    return config.trajectories.loops


@dataclass(frozen=True)
class Figure:
    """One figure, written to results/<name>.pdf by the rule plot_<name>.

    Attributes:
        name: Name of the figure, its module and its caption.
        inputs: Name of a table -> file of a run with this table.
        caption: Values that the caption quotes besides `report_values`, from the Config of the run.
        loops: Loop steps K named in the figure.
        values: Further arguments of `draw`.
        target: Target rule that the figure belongs to: "all", "supplementary" or the name of a study.
        title: Name of the figure in the report; by default from `name`.
        claims: Numbers of the claims (`twoscale.analysis.claims`) that the figure is about.
        groups: Least number of looped groups that the figure needs.
        training: Whether it needs a model that is trained here.
        noise: Whether it needs a model that draws noise.
        study: Study whose runs are shown instead of the selected run. Config is then that of the first of them.
        seeds: Whether it needs the run under further seeds.
        seed_band: Whether it shows the range over seeds where `figures.seed_band` asks for it.
        compared: Whether the inputs are tables of the selected run that compare the runs of the study.
        projection: Whether it needs a model with a projection of state and input.
        sentence: Dotted path of a function: table of the figure's name -> its results in a sentence, for the report.
        room: Study that the figure belongs to, filled in by `figures`; empty for those of the paper.
    """

    name: str
    inputs: Mapping[str, str]
    caption: Callable[[Config], dict[str, Any]] = _nothing
    loops: Callable[[Config], float] = _trajectory_loops
    values: Callable[[Config], dict[str, Any]] = _nothing
    target: str = "supplementary"
    title: str = ""
    claims: tuple[int, ...] = ()
    groups: int = 1
    training: bool = False
    noise: bool = False
    study: str = ""
    seeds: bool = False
    seed_band: bool = False
    compared: bool = False
    projection: bool = False
    sentence: str = ""
    room: str = ""

    @property
    def module(self) -> str:
        """Dotted name of the module with the function `draw`."""
        return f"twoscale.studies.{self.room}.{self._part('figure')}" if self.room else f"twoscale.figures.{self.name}"

    @property
    def caption_file(self) -> str:
        """File of the caption in the project."""
        if not self.room:
            return f"workflow/report/{self.name}.rst"
        return f"src/twoscale/studies/{self.room}/{self._part('caption')}.rst"

    def _part(self, kind: str) -> str:
        return kind if self.name == self.room else f"{kind}_{self.name}"

    @property
    def category(self) -> str:
        """Category in Snakemake's report."""
        return CATEGORIES.get(self.target, "Supplementary figures")

    @property
    def label(self) -> str:
        """Name of the figure in the report."""
        return self.title or self.name.replace("_", " ").capitalize()

    def problem(self, config: Config) -> str | None:
        """Why a run with this config does not have the figure: the end of a sentence, or None."""
        groups = len(config.model.groups)
        if groups < self.groups:
            return f"has {groups} looped groups, expected at least {self.groups}"
        if self.training and is_published(config):
            return "has a published model, expected one that is trained here"
        if self.noise and not config.model.draws_noise:
            return "has a model without noise, expected model.state_init: noise, or another one with noise"
        if self.projection and config.model.injection == "none":
            return "has a model without a projection, expected model.injection: projection"
        return one_seed(config) if self.seeds else None


def one_seed(config: Config) -> str | None:
    """The end of a sentence about a run without further seeds, or None."""
    if set(config.seeds) <= {config.seed}:
        return "has one seed, expected further ones in the config key seeds, such as seeds: [1337, 1338, 1339]"
    return None


def table(*names: str, **files: str) -> dict[str, str]:
    """Inputs in the folder of tables: tables in files of the same name, and `files` with tables of another name."""
    return {name: f"tables/{file}.parquet" for name, file in (dict(zip(names, names, strict=True)) | files).items()}


# --- values of captions ---------------------------------------------------------------------------------------------


def report_values(run: str, config: Config) -> dict[str, Any]:
    """Values that every caption may quote."""
    return {"run": run, "text": text_label(config.data), "published": is_published(config)}


def is_published(config: Config) -> bool:
    return config.model.source == "published"


def after_training(config: Config) -> str:
    """Which checkpoint the last one is."""
    return "as published" if is_published(config) else f"after {checkpoint_iterations(config.train)[-1]} iterations"


def group_names(config: Config) -> str:
    return ", ".join(config.model.group_labels).replace("-", "–")


def boundary_names(config: Config) -> str:
    return ", ".join(config.model.boundary_labels).replace("->", " → ").replace("-", "–")


def trajectory_values(config: Config) -> dict[str, Any]:
    """What is said of means over tokens at every loop step."""
    return {
        "groups": group_names(config),
        "loops": config.trajectories.loops,
        "tokens": config.trajectory_sequences * config.model.context_length,
        "dtype": config.trajectories.dtype,
    }


def _fig1(config: Config) -> dict[str, Any]:
    return {
        "after": after_training(config),
        "sequence": config.trajectories.states_sequence,
        "shown_tokens": config.figures.fig1_tokens,
        "groups": group_names(config),
        "loops": config.trajectories.loops,
    }


def all_seeds(config: Config) -> str:
    """The seeds of a run that has several; else empty."""
    return seed_list(config) if one_seed(config) is None else ""


def seed_list(config: Config) -> str:
    return ", ".join(map(str, dict.fromkeys((config.seed, *config.seeds))))


def _seed_band(config: Config) -> dict[str, Any]:
    """The seeds whose range a figure shows."""
    return {"band": all_seeds(config) if config.figures.seed_band else ""}


def _curves(config: Config) -> dict[str, Any]:
    return trajectory_values(config) | _seed_band(config)


def _fig2(config: Config) -> dict[str, Any]:
    return _seed_band(config) | {
        "boundaries": boundary_names(config),
        "core": group_names(config) if len(config.model.groups) == 1 else None,
        "loops": config.trajectories.loops,
        "tokens": config.trajectory_sequences * config.model.context_length,
        "reference_state": config.figures.dlr_reference_state,
    }


def exit_values(config: Config) -> dict[str, Any]:
    """What is said of the benchmark of exit criteria."""
    return {
        "max_loops": config.exits.max_loops,
        "dtype": config.exits.dtype,
        "device": config.compute.device,
        "readout": config.exits.readout.replace("_", " "),
        "kv_slots": config.exits.kv_slots,
        "latency_tokens": config.exits.latency_tokens,
        "latency_repeats": config.exits.latency_repeats,
        "quality_tokens": config.quality_sequences * config.model.context_length,
        "draws": config.exits.control_draws,
    }


# --- the figures ----------------------------------------------------------------------------------------------------


def exit_max_loops(config: Config) -> float:
    return config.exits.max_loops


def reference_state(config: Config) -> dict[str, Any]:
    return {"reference_state": config.figures.dlr_reference_state}


PAPER = (
    Figure(
        "fig1",
        table("state_paths"),
        _fig1,
        values=lambda config: {"tokens": config.figures.fig1_tokens},
        target="all",
        title="Fig. 1, trajectories",
        claims=(1, 6),
    ),
    Figure(
        "fig2",
        table("drift"),
        _fig2,
        values=reference_state,
        target="all",
        title="Fig. 2, drift",
        claims=(6,),
        seed_band=True,
    ),
    Figure(
        "fig3",
        table("loop_metrics"),
        _curves,
        target="all",
        title="Fig. 3, step norms and angles",
        claims=(1, 2, 3, 12),
        seed_band=True,
    ),
    Figure(
        "fig4",
        table("exit_latency", "exit_quality", "exit_loops", "exit_controls"),
        exit_values,
        loops=exit_max_loops,
        target="all",
        title="Fig. 4, exit criteria",
        claims=(7, 8, 9, 10, 11, 14, 15),
    ),
    Figure(
        "fig5",
        table("loop_metrics"),
        _curves,
        target="all",
        title="Fig. 5, angles over all loop steps",
        claims=(3, 4, 5),
        seed_band=True,
    ),
)


@cache
def figures() -> tuple[Figure, ...]:
    """The figures of the paper, then those of the studies."""
    rows = [(study, getattr(part, "FIGURES", ())) for study, part in study_parts("study").items()]
    return PAPER + tuple(replace(figure, room=study) for study, figures in rows for figure in figures)


def snapshot_figures(figures: Iterable[Figure], chosen: Iterable[Figure] = ()) -> list[Figure]:
    """Those of `figures` that a snapshot has: the figures of the paper, that of training, and the chosen ones."""
    chosen = list(chosen)
    return [figure for figure in figures if figure.target == "all" or figure.name == "training" or figure in chosen]
