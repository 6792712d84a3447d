"""Figures and jobs of the study."""

from typing import TYPE_CHECKING, Any

from twoscale.config.identity import text_label
from twoscale.figures.catalogue import Figure, table
from twoscale.studies.rows import Comparison

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


FIGURES = (
    Figure(
        "starts",
        table("starts"),
        target="starts",
        title="Starts of the projection",
        claims=(4,),
        training=True,
        study="starts",
        compared=True,
        projection=True,
    ),
)


def _labels(runs: "Runs") -> list[dict[str, Any]]:
    """Start, first state, norm and seed of each run of the study; the share of the state is null for random weights."""
    compared = [runs[run] for run in runs.study("starts")]
    return [
        {"share": run.model.adapter_share if run.model.adapter_init == "blend" else None, "seed": run.seed}
        | {"state_init": run.model.state_init, "sandwich": run.model.sandwich}
        for run in compared
    ]


JOBS = (
    Comparison(
        name="compare_starts",
        function="twoscale.studies.starts.page.run",
        inputs=lambda runs: runs.report.page_inputs("starts", table("training", loops="loop_sequences")),
        outputs={"table": "results/{selected}/tables/starts.parquet", "page": "results/starts.md"},
        tables=["starts"],
        config=lambda runs: runs.params.slice(
            "run", "seed", text=lambda config: text_label(config.data), runs=lambda config: _labels(runs)
        ),
        target="starts",
    ),
)
