"""Figures, pages and captions: which the selected run has, and the tables that they show."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoscale import config as configs
from twoscale import tables
from twoscale.analysis.costs import scales
from twoscale.base import InputError, canonical_json, did_you_mean, rst
from twoscale.figures.catalogue import Figure, caption_values, report_values, snapshot_figures
from twoscale.workflow.params import untracked
from twoscale.workflow.paths import trains

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

REPORT_RESULTS = "results/report/results.json"  # figure -> sentences, written with the first page of the report


@dataclass(frozen=True)
class Report:
    """Figures, pages and captions of the selected run."""

    runs: "Runs"

    @property
    def claims(self) -> list[str]:
        """The page of the claims, which are about loops: empty for a model without groups, or without their tables."""
        selected, needed = self.runs.selected, tables.CLAIM_TABLES.values()
        absent = self.runs.unreleased(f"{selected}/tables/{table}.parquet" for table in needed)
        return [self.drawn("claims.md")] if self.runs.config.model.groups and not absent else []

    def results(self, wildcards: Any) -> list[str]:
        """Input function: the figures of the paper and the claims. InputError for a model without loops."""
        if not self.runs.config.model.groups:
            raise InputError(
                f"run {self.runs.selected}: found no looped groups (model.groups: []), expected at least one for the "
                "figures of the paper; the checkpoints of this run and the baselines can still be requested by name."
            )
        return self.figure_files("all") + list(map(in_results, self.claims))

    # --- files ------------------------------------------------------------------------------------------------------

    def drawn(self, name: str) -> str:
        """The file of a figure or page of the selected run; `in_results` is its copy."""
        return f"{self.runs.table_root}/{self.runs.selected}/figures/{name}"

    def to_show(self, wildcards: Any) -> dict[str, str]:
        """Input function: name -> file of the figure or page that the wildcard `figure` or `page` names."""
        if hasattr(wildcards, "page"):
            return {"page": self.drawn(wildcards.page)}
        return {"figure": self.drawn(f"{wildcards.figure}.pdf"), "picture": self.drawn(f"{wildcards.figure}.svg")}

    @property
    def shown_pages(self) -> list[str]:
        """Names of the pages that have a copy in results/."""
        files = map(Path, [self.drawn("claims.md"), *(job.shown for job in self.runs.comparisons)])
        return [file.name for file in files if file.parent == Path(self.drawn(""))]

    # --- figures and their inputs -----------------------------------------------------------------------------------

    def figure_runs(self, figure: Figure) -> list[str]:
        """The runs whose tables a figure reads."""
        return [self.runs.selected] if figure.compared else self._shown_runs(figure)

    def _shown_runs(self, figure: Figure) -> list[str]:
        """The runs that a figure shows; its config is that of the first of them."""
        if figure.seed_band and self.runs.config.figures.seed_band:
            return self.runs.study("seeds")
        return (self.runs.study(figure.study) if figure.study else []) or [self.runs.selected]

    def figure_inputs(self, figure: Figure) -> dict[str, Any]:
        """Input files of a figure by the name of the table in them, one file per run.

        For a figure that the selected run does not have: an input function that says why.
        """
        return self._inputs(figure, f"results/{figure.name}.pdf", self.figure_runs(figure), figure.inputs)

    def page_inputs(self, name: str, files: Mapping[str, str]) -> dict[str, Any]:
        """Inputs of the page results/<name>.md: `files` (`catalogue.table`) of the runs that the figure <name> shows.

        For a figure that the selected run does not have: an input function that says why.
        """
        figure = next(figure for figure in self.runs.figures if figure.name == name)
        return self._inputs(figure, f"results/{name}.md", self._shown_runs(figure), files)

    def _inputs(self, figure: Figure, output: str, runs: Sequence[str], files: Mapping[str, str]) -> dict[str, Any]:
        problem, root = self._problem(figure), self.runs.table_root

        def refuse(wildcards: Any) -> list[str]:
            raise InputError(f"{output}: run {self.runs.selected} {problem}.")

        return {name: refuse if problem else [f"{root}/{run}/{file}" for run in runs] for name, file in files.items()}

    def _problem(self, figure: Figure) -> str | None:
        """Why the selected run does not have the figure: the end of a sentence, or None."""
        return figure.problem(self.runs.config) or self.runs.unreleased(
            f"{run}/{file}" for run in self.figure_runs(figure) for file in figure.inputs.values()
        )

    def figure_slice(self, figure: Figure) -> Callable:
        """Param function: what a figure shows besides its tables, as one canonical JSON string.

        A function, because Snakemake takes braces in a plain string for a wildcard.
        """

        def param(wildcards: Any) -> str:
            config = self.runs[self._shown_runs(figure)[0]]
            shown = self._names() | {"runs": self.figure_runs(figure), "published": not trains(config)}
            return canonical_json(shown | {"loops": figure.loops(config), "values": figure.values(config)})

        return param

    def _names(self) -> dict[str, str]:
        return {"run": self.runs.selected, "text": configs.text_label(self.runs.config.data)}

    # --- targets ----------------------------------------------------------------------------------------------------

    def figure_files(self, target: str) -> list[str]:
        """The files of a target rule: its figures that the selected run has, and their pages."""
        has = [figure.name for figure in self.runs.figures if figure.target == target and not self._problem(figure)]
        pages = [in_results(job.shown) for job in self.runs.comparisons if job.target == target]
        return [f"results/{name}.pdf" for name in has] + [page for page in pages if Path(page).stem in has]

    @property
    def study_targets(self) -> dict[str, list[str]]:
        """Target rules of studies, besides "supplementary" -> figures and pages.

        The rules of those that the selected run does not have refuse them.
        """
        files = [(figure.target, f"results/{figure.name}.pdf") for figure in self.runs.figures]
        files += [(job.target, in_results(job.shown)) for job in self.runs.comparisons]
        targets = dict.fromkeys(target for target, _ in files if target not in ("", "all", "supplementary"))
        return {name: [file for target, file in files if target == name] for name in targets}

    def missing(self, file: str) -> str:
        """The sentence on a file or target that no rule makes."""
        folders, runs = Path(file).parts[:-1], [run for run in self.runs if "/" not in run]
        if len(folders) > 1 and folders[0] == "results" and folders[1] not in self.runs:
            close = did_you_mean(folders[1], runs)
            return f"{file}: found no run {folders[1]} in this config, expected one of {', '.join(runs)}{close}."
        figures = [f"results/{figure.name}.pdf" for figure in self.runs.figures]
        targets = ["all", "supplementary", *self.study_targets]
        return (
            f"{file}: found no rule that makes it, expected a target ({', '.join(targets)}), a figure "
            f"({', '.join(figures)}) or a file of a run{did_you_mean(file, [*targets, *figures])}; "
            "snakemake --list-rules lists all rules."
        )

    @property
    def descriptions(self) -> dict[str, str]:
        """Rule -> its line in `snakemake --list-rules`, for the rules that follow from rows of figures and jobs."""
        jobs = {job.name: f"Job: {', '.join(job.outputs.values())}" for job in self.runs.jobs}
        drawn = {
            f"plot_{figure.name}": f"Figure: {figure.label}, results/{figure.name}.pdf" for figure in self.runs.figures
        }
        titles = {figure.target: f"{figure.label}, " for figure in self.runs.figures}
        files = {name: ", ".join(shown) for name, shown in self.study_targets.items()}
        return jobs | drawn | {name: f"Target: {titles.get(name, '')}{shown}" for name, shown in files.items()}

    # --- the report -------------------------------------------------------------------------------------------------

    @cached_property
    def figures(self) -> list[Figure]:
        """The figures of the report: those of the paper, and others whose tables were computed for the selected run.

        Decided once, so that inputs and params agree while jobs of the same call write further tables.
        """
        figures = [figure for figure in self.runs.figures if not self._problem(figure)]
        return [figure for figure in figures if figure.target == "all" or self._has_tables(figure)]

    def _has_tables(self, figure: Figure) -> bool:
        return all(Path(file).exists() for files in self.figure_inputs(figure).values() for file in files)

    def pictures(self, wildcards: Any) -> list[str]:
        """Input function: the pictures of `figures`."""
        return [self.drawn(f"{figure.name}.svg") for figure in self.figures]

    @property
    def pages(self) -> list[str]:
        """Pages of jobs that the report has."""
        return [job.shown for job in self.runs.comparisons if job.report]

    @property
    def sentences(self) -> dict[str, str]:
        """Figure -> dotted path of its function `sentence`, for the figures that have one."""
        return {figure.name: figure.sentence for figure in self.runs.figures if figure.sentence}

    def figure_table(self, name: str) -> Callable:
        """Input function: the table in the file tables/<name>.parquet if the report has the figure of this name."""
        files = [self.runs.paths.table_file(name)]
        return lambda wildcards: files if name in [figure.name for figure in self.figures] else []

    def overview_slice(self, wildcards: Any) -> str:
        """Param function: what the first page of the report shows besides tables, as one canonical JSON string."""
        figures = [
            {"name": figure.name, "title": figure.label, "claims": figure.claims, "sentence": figure.sentence}
            for figure in self.figures
        ]
        reference = self.runs.config.figures.dlr_reference_state
        shown = {"report_figures": figures, "reference_state": reference, "scales": scales(self.runs.config).plain}
        return canonical_json(self._names() | shown)

    def snapshot_files(self, wildcards: Any) -> list[str]:
        """Input function: claims, the figures of the report and of training, and the tables of all of them.

        InputError for a published model.
        """
        if not trains(self.runs.config):
            raise InputError(
                f"results/snapshot: run {self.runs.selected} has a published model, expected one trained here."
            )
        has = (figure for figure in self.runs.figures if not self._problem(figure))
        figures = snapshot_figures(has, self.figures)
        pictures = [f"results/{figure.name}.svg" for figure in figures]
        read = [file for figure in figures for files in self.figure_inputs(figure).values() for file in files]
        judged = ["claims", *tables.CLAIM_TABLES.values()] if self.claims else []
        return list(
            dict.fromkeys([*map(in_results, self.claims), *map(self.runs.paths.table_file, judged), *pictures, *read])
        )

    # --- captions ---------------------------------------------------------------------------------------------------

    def caption(self, figure: Figure | None = None) -> Callable:
        """Param function: values for the caption of a figure or of a page of the report. Untracked."""
        values = report_values(self.runs.selected, self.runs.config)
        if figure is not None:
            values |= caption_values(figure, self.runs[self._shown_runs(figure)[0]])

        @untracked
        def param(wildcards: Any) -> Caption:
            results = _results(figure.name) if figure is not None else ""
            return Caption(values | {"held_out": self._near_duplicates()}, results)

        return param

    def _near_duplicates(self) -> dict[str, Any] | None:
        """Held-out documents that were examined and dropped, from the selected run's tokens.json once it exists.

        None for a published model: its training text is not here.
        """
        if not trains(self.runs.config):
            return None
        folder = Path("results", self.runs.paths.data_run(self.runs.selected), "data")
        try:
            return json.loads((folder / "tokens.json").read_text())["parts"]["val.bin"]["near_duplicates"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None


def in_results(file: str) -> str:
    """The copy in results/ of a file of `Report.drawn`; any other file itself."""
    path = Path(file)
    return f"results/{path.name}" if path.parent.name == "figures" else file


class Caption(dict):
    """The values of a caption, in which reStructuredText has no markup of strings, except in `results`.

    The report prints the params of a job beside its caption, which quotes these values.
    """

    def __init__(self, values: Mapping[str, Any], results: str = "") -> None:
        super().__init__({name: _without_markup(value) for name, value in values.items()}, results=results)

    def __str__(self) -> str:
        return "(see the description)"


def _results(figure: str) -> str:
    """The results of a figure for its caption, as a list in reStructuredText; empty if there are none yet."""
    try:
        sentences = json.loads(Path(REPORT_RESULTS).read_text(encoding="utf-8"))[figure]
    except (OSError, ValueError, LookupError):
        return ""
    items = [f"- {rst(sentence)}" for sentence in sentences]
    return "\n".join(["**Results**, with 95 % intervals in brackets:", "", *items]) if items else ""


def _without_markup(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_markup(entry) for name, entry in value.items()}
    return rst(value) if isinstance(value, str) else value
