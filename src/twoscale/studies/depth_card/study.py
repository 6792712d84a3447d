"""Figures and jobs of the study."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from twoscale.base import InputError, did_you_mean
from twoscale.config.identity import text_label
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, is_published, table
from twoscale.jobs.rows import LocalJob, TorchJob
from twoscale.model.flops import parameters
from twoscale.studies.depth_card.steps import counts_of, trained_loops

if TYPE_CHECKING:
    from twoscale.workflow.runs import Runs

KEY = "config key depth_card.unlooped"
BASELINE = "baselines/parameters"
QUALITY = "results/{run}/depth_card/iteration_{iteration}.quality.parquet"
STATES = QUALITY.replace("quality", "states")
TABLES = {name: f"results/{{run}}/tables/{name}.parquet" for name in ("depth_card", "depth_findings")}
FIGURES = (
    Figure(
        "depth_card",
        table("depth_card", "depth_findings"),
        loops=lambda config: counts_of(config)[-1],
        title="Depth card",
        sentence="twoscale.studies.depth_card.compare.sentence",
    ),
)


def _last(runs: "Runs", pattern: str) -> Callable:
    """Input function: the file of the last checkpoint of the run."""

    def file(wildcards: Any) -> str:
        run, _ = runs.of(wildcards)
        return pattern.format(run=run, iteration=f"{runs.iterations(run)[-1]:06d}")

    return file


def _unlooped(runs: "Runs", config: Config) -> str | None:
    """The run without loops that the selected run is compared with, if there is one. InputError for an unknown one."""
    name = config.depth_card.unlooped
    if name is not None and name not in runs.configs:
        raise InputError(
            f"{KEY}: found {name}, expected one of the runs {', '.join(runs)}{did_you_mean(name, runs.configs)}."
        )
    if name is None and BASELINE in runs.configs and not config.baselines.overrides:
        trained = Path(runs.checkpoint(BASELINE, runs.iterations(BASELINE)[-1])).is_file()
        return BASELINE if trained else None
    return name


def _of_unlooped(runs: "Runs") -> dict[str, Any]:
    """Inputs: the quality of the run without loops, and the metadata of both texts."""

    def files(pattern: str) -> Any:
        def of(wildcards: Any) -> list[str]:
            name = _unlooped(runs, runs.of(wildcards)[1])
            return [] if name is None else [_last(runs, pattern)(SimpleNamespace(run=name))]

        return of

    def metadata(wildcards: Any) -> list[str]:
        name = _unlooped(runs, runs.of(wildcards)[1])
        return [] if name is None else [f"results/{runs.data_run(name)}/data/tokens.json"]

    return {
        "unlooped": files(QUALITY),
        "unlooped_text": metadata,
        "text": runs.data_file("tokens.json"),
    }


def _identity(config: Config) -> dict[str, Any]:
    """The model and the text of the measurement: rows of the page."""
    model = config.model
    origin = model.folder or f"{model.repository} at {model.revision}" if is_published(config) else "trained here"
    sizes = f"{parameters(model):,} parameters, {model.num_layers} layers, hidden size {model.hidden_size}"
    loops = "as published" if is_published(config) else "r of training, rounded"
    return {
        "weights": origin,
        "model": f"{sizes}, looped layers {', '.join(model.group_labels)}",
        "trained loops": f"{model.typical_loops} ({loops})",
        "text": f"{text_label(config.data)}, {config.whole_tokens('depth_card')} held-out tokens in sequences of "
        f"{model.context_length}",
        "precision": config.depth_card.dtype,
        "seed": config.seed,
    }


def _loops_of_unlooped(runs: "Runs", config: Config) -> int | None:
    name = _unlooped(runs, config)
    return None if name is None else trained_loops(runs[name])


JOBS = (
    TorchJob(
        name="measure_depth",
        function="twoscale.studies.depth_card.measure.run",
        outputs={"quality": QUALITY, "states": STATES},
        tables=["depth_quality", "depth_states"],
        config=lambda runs: runs.params.slice(
            *("seed", "device", "model"),
            depth_card=lambda config: config.depth_card.model_copy(update={"tolerance": 0.0, "unlooped": None}),
            sequences=lambda config: config.sequences("depth_card"),
        ),
        dtype="depth_card",
    ),
    LocalJob(
        name="compare_depths",
        function="twoscale.studies.depth_card.compare.run",
        inputs=lambda runs: {"quality": _last(runs, QUALITY), "states": _last(runs, STATES), **_of_unlooped(runs)},
        outputs=TABLES,
        tables=list(TABLES),
        config=lambda runs: runs.params.slice(
            *("run", "seed"),
            trained_loops=trained_loops,
            tolerance=lambda config: config.depth_card.tolerance,
            unlooped=lambda config: _unlooped(runs, config),
            unlooped_loops=lambda config: _loops_of_unlooped(runs, config),
        ),
    ),
    LocalJob(
        name="write_depth_card",
        function="twoscale.studies.depth_card.page.run",
        inputs=lambda runs: (
            runs.figures.page_inputs("depth_card", table(card="depth_card", findings="depth_findings"))
            | {"picture": "results/depth_card.svg"}
        ),
        outputs={"page": "results/{selected}/figures/depth-card.md"},
        config=lambda runs: runs.params.slice("run", identity=_identity),
    ),
)
