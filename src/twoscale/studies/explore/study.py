"""Figures and jobs of the study."""

from typing import TYPE_CHECKING, Any

from twoscale.base import InputError
from twoscale.config.data import text_label
from twoscale.jobs.rows import LocalJob, TorchJob

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

TABLES = {name: f"results/{{run}}/explore/{name}.parquet" for name in ("states", "exits")}


def _page_inputs(runs: "Runs") -> dict[str, Any]:
    """The tables of the page. InputError for a run without groups."""

    def refuse(wildcards: Any) -> list[str]:
        raise InputError(f"results/explore.html: run {runs.selected} has no looped groups, expected at least 1.")

    looped = runs.config.model.groups
    return {name: path.format(run=runs.selected) if looped else refuse for name, path in TABLES.items()}


JOBS = (
    TorchJob(
        name="extract_explore",
        function="twoscale.studies.explore.measure.run",
        inputs=lambda runs: runs.of_exits("exit") | {"tokenizer": runs.tokenizer_file},
        outputs=TABLES,
        tables=[f"explore_{name}" for name in TABLES],
        config=lambda runs: runs.params.exit_slice(
            "exit",
            sections=["trajectories", "explore"],
            tokenizer=lambda config: config.tokenizer.name,
            sequences=lambda config: config.trajectory_sequences,
        ),
        dtype="trajectories",
    ),
    LocalJob(
        name="write_explore_page",
        function="twoscale.studies.explore.draw.run",
        inputs=_page_inputs,
        outputs={"page": "results/{selected}/figures/explore.html"},
        config=lambda runs: runs.params.slice("run", text=lambda config: text_label(config.data)),
        target="explore",
    ),
)
