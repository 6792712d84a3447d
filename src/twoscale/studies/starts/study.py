"""Figures and jobs of the study."""

from typing import TYPE_CHECKING, Any

from twoscale.config.identity import text_label
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, seed_list, table, trajectory_values
from twoscale.studies.rows import Comparison

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


def _caption(config: Config) -> dict[str, Any]:
    return trajectory_values(config) | {
        "seeds": seed_list(config),
        "iterations": config.train.iterations,
        "training_tokens": config.train.iterations * config.train.batch_size * config.model.context_length,
        "held_out_loops": config.train.held_out_loops,
        "num_layers": config.model.num_layers,
        "hidden_size": config.model.hidden_size,
    }


FIGURES = (
    Figure(
        "starts",
        table("starts"),
        _caption,
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
