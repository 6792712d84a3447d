"""Figures and jobs of the study."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twoscale.base import InputError
from twoscale.config import Config
from twoscale.config.data import text_label
from twoscale.config.sections import ScalingConfig
from twoscale.figures.catalogue import Figure, table
from twoscale.jobs.rows import LocalJob, TorchJob
from twoscale.model.flops import mean_flops_per_token, parameters
from twoscale.studies.baselines.runs import LOOPED, UNTRAINED

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs


FIGURES = (
    Figure(
        "baselines",
        table("baselines"),
        loops=lambda config: config.train.held_out_loops,
        target="baselines",
        title="Baselines: what the loops buy",
        training=True,
        sentence="twoscale.studies.baselines.compare.sentence",
    ),
)


QUALITY = "results/{run}/baselines/iteration_{iteration}.parquet"


def compared(runs: "Runs") -> list[dict[str, Any]]:
    """The compared models with run, seed, iteration, layers, parameters and FLOPs per token.

    The looped model is the selected run under every seed, unless the study has overrides.
    """
    names = {run: run.removeprefix("baselines/").partition("-seed")[0] for run in runs.study("baselines")}
    if LOOPED not in names.values():
        names = dict.fromkeys(runs.study("seeds"), LOOPED) | names
    untrained = [(UNTRAINED, run, 0) for run, name in names.items() if name == LOOPED]
    trained = [(name, run, runs.iterations(run)[-1]) for run, name in names.items()]
    return [_model(runs[run], name, run, iteration) for name, run, iteration in trained + untrained]


def _model(config: Config, name: str, run: str, iteration: int) -> dict[str, Any]:
    counts: dict[str, float] = {"parameters": parameters(config.model), "layers": config.model.num_layers}
    counts |= {"flops": mean_flops_per_token(config.model, config.train).total}
    return {"model": name, "run": run, "seed": config.seed, "iteration": iteration} | counts


def _files(runs: "Runs") -> Callable:
    """Input function: the quality of each compared model. InputError for a run without baselines."""

    def files(wildcards: Any) -> list[str]:
        if not runs.study("baselines"):
            raise InputError(
                f"results/baselines.md: run {runs.selected} has no baselines, expected a looped model trained here."
            )
        return [QUALITY.format(run=m["run"], iteration=f"{m['iteration']:06d}") for m in compared(runs)]

    return files


def _page(runs: "Runs") -> dict[str, Any]:
    """Text and sizes that results/baselines.md mentions."""
    config = runs[compared(runs)[0]["run"]]
    train, model = config.train, config.model
    return {
        "run": runs.selected,
        "text": text_label(runs.config.data),
        "loops": train.held_out_loops,
        "mean_loops": f"{model.mean_loops + 1:g}",
        "iterations": train.iterations,
        "training_tokens": train.batch_size * model.context_length * train.iterations,
    }


def _at_held_out_loops(config: Config) -> ScalingConfig:
    return config.scaling.model_copy(update={"loops": (config.train.held_out_loops,)})


JOBS = (
    TorchJob(
        name="measure_baseline",
        function="twoscale.exits.fixed_loops.run",
        outputs={"quality": QUALITY},
        tables=["scaling_quality"],
        config=lambda runs: runs.params.slice(
            "seed", "device", "model", scaling=_at_held_out_loops, sequences=lambda config: config.sequences("scaling")
        ),
        dtype="scaling",
        trained=True,
    ),
    LocalJob(
        name="compare_baselines",
        function="twoscale.studies.baselines.compare.run",
        inputs=lambda runs: {"quality": _files(runs)},
        outputs={
            "baselines": "results/{selected}/tables/baselines.parquet",
            "page": "results/{selected}/figures/baselines.md",
        },
        tables=["baselines"],
        config=lambda runs: runs.params.slice(
            *("run", "seed"), compared=lambda config: compared(runs), page=lambda config: _page(runs)
        ),
        target="baselines",
    ),
)
