"""Figures and jobs of the study."""

from typing import TYPE_CHECKING, Any

from twoscale.config.data import text_label
from twoscale.figures.catalogue import Figure, table
from twoscale.jobs.rows import LocalJob

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


FIGURES = (
    Figure(
        "adapter_init",
        table("adapter_init"),
        target="adapter_init",
        title="Adapter initialisations",
        claims=(4,),
        training=True,
        study="adapter_init",
        compared=True,
        projection=True,
    ),
)


def _labels(runs: "Runs") -> list[dict[str, Any]]:
    """Start, first state, norm and seed of each run of the study; the share of the state is null for random weights."""
    compared = [runs[run] for run in runs.study("adapter_init")]
    return [
        {"share": run.model.adapter_share if run.model.adapter_init == "blend" else None, "seed": run.seed}
        | {"state_init": run.model.state_init, "sandwich": run.model.sandwich}
        for run in compared
    ]


JOBS = (
    LocalJob(
        name="compare_adapter_init",
        function="twoscale.studies.adapter_init.page.run",
        inputs=lambda runs: runs.figures.page_inputs("adapter_init", table("training", loops="loop_sequences")),
        outputs={
            "table": "results/{selected}/tables/adapter_init.parquet",
            "page": "results/{selected}/figures/adapter_init.md",
        },
        tables=["adapter_init"],
        config=lambda runs: runs.params.slice(
            "run", "seed", text=lambda config: text_label(config.data), runs=lambda config: _labels(runs)
        ),
        target="adapter_init",
    ),
)
