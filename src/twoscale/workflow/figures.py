"""Figures and pages of the selected run: the tables that they read, their params, captions and
targets.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twoscale import config as configs
from twoscale import tables
from twoscale.base import InputError, canonical_json, rst
from twoscale.claims.scale import scales
from twoscale.figures.catalogue import (
    Figure,
    caption_values,
    figures,
    report_values,
    snapshot_figures,
)
from twoscale.workflow.data_files import trains
from twoscale.workflow.params import module_of, untracked

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


# figure -> sentences, written with the first page of the report
_REPORT_RESULTS = "results/report/results.json"


@dataclass(frozen=True)
class Figures:
    """The figures of the paper and of the studies, a collection to which a stage may append.

    Unless noted, methods are input or param functions or return one.
    """

    runs: "Runs"
    rows: list[Figure] = field(default_factory=lambda: list(figures()))

    def __iter__(self) -> Iterator[Figure]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Figure:
        return next(figure for figure in self if figure.name == name)

    # --- files ------------------------------------------------------------------------------------

    def drawn(self, name: str) -> str:
        """The file of a figure or page of the selected run; see `in_results`."""
        return f"{self.runs.table_root}/{self.runs.selected}/figures/{name}"

    def to_show(self, wildcards: Any) -> dict[str, str]:
        """Name -> file of the figure or page that the wildcard `figure` or `page` names."""
        if hasattr(wildcards, "page"):
            return {"page": self.drawn(wildcards.page)}
        return {
            "figure": self.drawn(f"{wildcards.figure}.pdf"),
            "picture": self.drawn(f"{wildcards.figure}.svg"),
        }

    @property
    def claims(self) -> list[str]:
        """The page of the claims, which are about loops: empty for a model without groups, or
        without their tables.
        """
        needed = (
            f"{self.runs.selected}/tables/{table}.parquet" for table in tables.CLAIM_TABLES.values()
        )
        absent = self.runs.unreleased(needed)
        return [self.drawn("claims.md")] if self.runs.config.model.groups and not absent else []

    def results(self, wildcards: Any) -> list[str]:
        """The figures of the paper and the claims. Raises InputError for a model without loops."""
        if not self.runs.config.model.groups:
            raise InputError(
                f"run {self.runs.selected}: found no looped groups (model.groups: []), expected"
                f" at least one for the "
                "figures of the paper; the checkpoints of this run and the baselines can still be"
                " requested by name."
            )
        # a release has no trajectories, from which this page is made
        page = [] if self.runs.release else ["results/loops.html"]
        return self.of_target("all") + list(map(in_results, self.claims)) + page

    def loops_trajectories(self, wildcards: Any) -> str:
        """The trajectories at the last checkpoint of the selected run.

        Raises InputError for a release, which has none, and for a model without loops.
        """
        selected = self.runs.selected
        found = ""
        if self.runs.release is not None:
            found = f"is from the release {self.runs.release.source}, which has no trajectories"
        elif not self.runs.config.model.groups:
            found = "has no looped groups (model.groups: [])"
        if found:
            raise InputError(f"results/loops.html: run {selected} {found}.")
        iteration = self.runs.iterations(selected)[-1]
        return f"results/{selected}/trajectories/iteration_{iteration:06d}.parquet"

    # --- inputs and params of a figure ------------------------------------------------------------

    def runs_of(self, figure: Figure) -> list[str]:
        """The runs whose tables a figure reads."""
        return [self.runs.selected] if figure.compared else self._shown_runs(figure)

    def _shown_runs(self, figure: Figure) -> list[str]:
        """The runs that a figure shows; the first gives its config."""
        has_band = figure.seed_band and self.runs.config.figures.seed_band
        if has_band or figure.study == "seeds":
            return self.runs.seed_runs
        # the selected run, unless the figure is of a study that has runs
        return (self.runs.study(figure.study) if figure.study else []) or [self.runs.selected]

    def inputs(self, figure: Figure) -> dict[str, Any]:
        """Files of a figure by the name of the table in them, one file per run.

        For a figure that the selected run does not have: an input function that says why.
        """
        return self._inputs(
            figure, f"results/{figure.name}.pdf", self.runs_of(figure), figure.inputs
        )

    def page_inputs(self, name: str, files: Mapping[str, str]) -> dict[str, Any]:
        """Inputs of the page results/<name>.md, of the runs that its figure shows.

        `files` are those of `catalogue.inputs_from`.
        """
        figure = self[name]
        return self._inputs(figure, f"results/{name}.md", self._shown_runs(figure), files)

    def _inputs(
        self, figure: Figure, output: str, runs: Sequence[str], files: Mapping[str, str]
    ) -> dict[str, Any]:
        problem, root = self._problem(figure), self.runs.table_root

        # raised only when Snakemake plans this figure
        def refuse(wildcards: Any) -> list[str]:
            raise InputError(f"{output}: run {self.runs.selected} {problem}.")

        return {
            name: refuse if problem else [f"{root}/{run}/{file}" for run in runs]
            for name, file in files.items()
        }

    def _problem(self, figure: Figure) -> str | None:
        """Why the selected run does not have the figure: the end of a sentence, or None."""
        return figure.problem(self.runs.config) or self.runs.unreleased(
            f"{run}/{file}" for run in self.runs_of(figure) for file in figure.inputs.values()
        )

    def params(self, name: str) -> dict[str, Any]:
        """Params of the job that draws a figure with scripts/draw.py."""
        figure = self[name]
        params = self.runs.params.script(
            "draw", figure.function, config=self.config_json(figure), modules=[figure.module]
        )
        return params | {"caption": self.caption(figure)}

    def table(self, name: str, table: str) -> list[str] | Callable:
        """The files of a figure with one of its tables; see `inputs`."""
        return self.inputs(self[name])[table]

    def config_json(self, figure: Figure) -> Callable:
        """What a figure shows besides its tables, as one canonical JSON string.

        A function, because Snakemake takes braces in a plain string for a wildcard.
        """

        def param(wildcards: Any) -> str:
            config = self.runs[self._shown_runs(figure)[0]]
            shown = self._names() | {"runs": self.runs_of(figure), "published": not trains(config)}
            return canonical_json(
                shown | {"loops": figure.loops(config), "values": figure.values(config)}
            )

        return param

    def _names(self) -> dict[str, str]:
        return {"run": self.runs.selected, "text": configs.text_label(self.runs.config.data)}

    # --- targets ----------------------------------------------------------------------------------

    def of_target(self, target: str) -> list[str]:
        """The files of a target rule: its figures that the selected run has, and their pages."""
        has = [figure for figure in self if figure.target == target and not self._problem(figure)]
        pages = [figure for figure in has if figure.page and self.runs.release is None]
        return [f"results/{figure.name}.pdf" for figure in has] + [
            f"results/{figure.name}.md" for figure in pages
        ]

    # --- the report and the snapshot --------------------------------------------------------------

    @cached_property
    def reported(self) -> list[Figure]:
        """The figures of the report: those of the paper, and others whose tables were computed for
        the selected run.

        Decided once, so that inputs and params agree while jobs of the same call write further
        tables.
        """

        def has_tables(figure: Figure) -> bool:
            return all(
                Path(file).exists() for files in self.inputs(figure).values() for file in files
            )

        has = [figure for figure in self if not self._problem(figure)]
        return [figure for figure in has if figure.target == "all" or has_tables(figure)]

    def pictures(self, wildcards: Any) -> list[str]:
        return [self.drawn(f"{figure.name}.svg") for figure in self.reported]

    def reported_inputs(self, table: str) -> list[str]:
        """The files of a table that figures of the report read."""
        return [file for figure in self.reported for file in self.inputs(figure).get(table, [])]

    @property
    def sentence_modules(self) -> list[str]:
        """The modules of the functions `sentence`, which the job of the overview imports by
        name.
        """
        return [module_of(figure.sentence) for figure in self if figure.sentence]

    def reported_tables(self, wildcards: Any) -> list[str]:
        """The tables from which the overview takes sentences: those with the name of a figure of
        the report.
        """
        return [self.runs.table_file(figure.name) for figure in self.reported if figure.sentence]

    def overview_config(self, wildcards: Any) -> str:
        """What the first page of the report shows besides tables, as one canonical JSON string."""
        names = [
            {
                "name": figure.name,
                "title": figure.label,
                "claims": figure.claims,
                "sentence": figure.sentence,
            }
            for figure in self.reported
        ]
        config = self.runs.config
        shown = {
            "reference_state": config.figures.dlr_reference_state,
            "scales": scales(config).plain,
        }
        return canonical_json(self._names() | {"report_figures": names} | shown)

    def snapshot_files(self, wildcards: Any) -> list[str]:
        """Claims, the figures of the report and of training, and their tables; InputError for a
        published model.
        """
        if not trains(self.runs.config):
            found = f"run {self.runs.selected} has a published model"
            raise InputError(f"results/snapshot: {found}, expected one trained here.")
        chosen = snapshot_figures(
            (figure for figure in self if not self._problem(figure)), self.reported
        )
        pictures = [f"results/{figure.name}.svg" for figure in chosen]
        read = [
            file for figure in chosen for files in self.inputs(figure).values() for file in files
        ]
        judged = ["claims", *tables.CLAIM_TABLES.values()] if self.claims else []
        files = [
            *map(in_results, self.claims),
            *map(self.runs.table_file, judged),
            *pictures,
            *read,
        ]
        # figures share tables, and each file is copied once
        return list(dict.fromkeys(files))

    # --- captions ---------------------------------------------------------------------------------

    def in_report(self, name: str) -> dict[str, Any]:
        """How Snakemake's report shows the picture of a figure."""
        figure = self[name]
        caption = str(configs.PROJECT / figure.caption_file)
        return {"caption": caption, "category": figure.category, "labels": {"figure": figure.label}}

    def caption(self, figure: Figure | None = None) -> Callable:
        """Values for the caption of a figure or of a page of the report. Untracked."""
        values = report_values(self.runs.selected, self.runs.config)
        if figure is not None:
            values |= caption_values(figure, self.runs[self._shown_runs(figure)[0]])
        # captions are reStructuredText
        values |= {name: rst(value) for name, value in values.items() if isinstance(value, str)}

        @untracked
        def param(wildcards: Any) -> _Caption:
            results = _results(figure.name) if figure is not None else ""
            return _Caption(values, results=results, held_out=self._near_duplicates())

        return param

    def _near_duplicates(self) -> dict[str, Any] | None:
        """Held-out documents that were examined and dropped, from the selected run's tokens.json
        once it exists.

        None for a published model: its training text is not here.
        """
        tokens = Path("results", self.runs.data.data_run(self.runs.selected), "data", "tokens.json")
        if not trains(self.runs.config) or not tokens.is_file():
            return None
        return json.loads(tokens.read_text())["parts"]["val.bin"].get("near_duplicates")


class _Caption(dict):
    """The values of a caption, which the report does not print once more with the params of the
    job.
    """

    def __str__(self) -> str:
        return "(see the description)"


def in_results(file: str) -> str:
    """The copy in results/ of a file of `Figures.drawn`; any other file itself."""
    path = Path(file)
    return f"results/{path.name}" if path.parent.name == "figures" else file


def _results(figure: str) -> str:
    """The results of a figure for its caption, as a list in reStructuredText; empty if there are
    none yet.
    """
    results = Path(_REPORT_RESULTS)
    sentences = (
        json.loads(results.read_text(encoding="utf-8")).get(figure) if results.is_file() else None
    )
    items = [f"- {rst(sentence)}" for sentence in sentences or ()]
    return "\n".join(["**Results**, with 95 % intervals in brackets:", "", *items]) if items else ""
