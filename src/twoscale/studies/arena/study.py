"""Figures and jobs of the study."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twoscale.config import Config
from twoscale.config.data import text_label
from twoscale.figures.catalogue import Figure, exit_max_loops, table
from twoscale.jobs.rows import LocalJob, TorchJob, all_cores

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


FIGURES = (
    Figure(
        "pareto",
        table(
            exit_latency="pareto_latency",
            exit_quality="pareto_quality",
            exit_loops="pareto_loops",
        ),
        loops=exit_max_loops,
        title="Pareto: quality against latency",
        claims=(10,),
    ),
    Figure(
        "arena",
        table("arena"),
        loops=exit_max_loops,
        title="Arena: what the exits are worth",
        sentence="twoscale.studies.arena.page.summary",
    ),
)


def _page(runs: "Runs") -> Callable[[Config], dict[str, Any]]:
    """Text and sizes that results/arena.md mentions."""

    def values(config: Config) -> dict[str, Any]:
        length = config.model.context_length
        return {
            "run": runs.selected,
            "text": text_label(config.data),
            "draws": config.exits.random_draws,
            "loops": config.exits.max_loops,
            "groups": ", ".join(config.model.group_labels),
            "tokens": config.sequences("pareto", "quality_tokens") * length,
            "oracle_tokens": config.sequences("oracle") * length,
            "tolerance": f"{config.oracle.tolerance:g}",
        }

    return values


JOBS = (
    TorchJob(
        name="benchmark_pareto",
        function="twoscale.exits.benchmark.run",
        inputs=lambda runs: runs.of_exits("pareto"),
        outputs={
            "latency": "results/{run}/tables/pareto_latency.parquet",
            "latency_loops": "results/{run}/tables/pareto_latency_loops.parquet",
        },
        tables=["exit_latency", "exit_latency_loops"],
        config=lambda runs: runs.params.exit_slice("pareto"),
        dtype="exits",
        minutes=480,
        threads=all_cores,
        cpus=4,
    ),
    TorchJob(
        name="measure_exit_regret",
        function="twoscale.studies.arena.regret.run",
        inputs=lambda runs: runs.of_exits("pareto"),
        outputs={
            "exit_regret": "results/{run}/tables/pareto_regret.parquet",
            "oracle_frontier": "results/{run}/tables/oracle_frontier.parquet",
        },
        tables=["exit_regret", "oracle_frontier"],
        config=lambda runs: runs.params.exit_slice(
            "pareto", sections=["oracle"], sequences=lambda config: config.sequences("oracle")
        ),
        dtype="exits",
        minutes=120,
    ),
    LocalJob(
        name="compare_exits",
        function="twoscale.studies.arena.page.run",
        inputs=lambda runs: runs.figures.page_inputs(
            "arena",
            table(
                "oracle_frontier",
                exit_quality="pareto_quality",
                exit_loops="pareto_loops",
                exit_cost_matched="pareto_cost_matched",
                exit_regret="pareto_regret",
            ),
        ),
        outputs={
            "arena": "results/{selected}/tables/arena.parquet",
            "convergence": "results/{selected}/tables/convergence.parquet",
            "page": "results/{selected}/figures/arena.md",
        },
        tables=["arena", "convergence"],
        config=lambda runs: runs.params.slice("run", "seed", page=_page(runs)),
        target="supplementary",
    ),
)
