"""The figures: tables, values, caption and target of each one.

A figure is a row here (or a row that a stage's .smk file appends to `runs.figures`), the module figures/<name>.py with
a function `draw`, and the caption workflow/report/<name>.rst. `draw` takes the tables of `inputs` by name, then
`values` and `context` as keyword-only arguments. This module imports neither torch nor matplotlib.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from twoscale.config import Config, checkpoint_iterations, plain, text_label

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
        if self.training and _published(config):
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
    return {"run": run, "text": text_label(config.data), "published": _published(config)}


def _published(config: Config) -> bool:
    return config.model.source == "published"


def _after(config: Config) -> str:
    """Which checkpoint the last one is."""
    return "as published" if _published(config) else f"after {checkpoint_iterations(config.train)[-1]} iterations"


def _groups(config: Config) -> str:
    return ", ".join(config.model.group_labels).replace("-", "–")


def _boundaries(config: Config) -> str:
    return ", ".join(config.model.boundary_labels).replace("->", " → ").replace("-", "–")


def _trajectories(config: Config) -> dict[str, Any]:
    """What is said of means over tokens at every loop step."""
    return {
        "groups": _groups(config),
        "loops": config.trajectories.loops,
        "tokens": config.trajectory_sequences * config.model.context_length,
        "dtype": config.trajectories.dtype,
    }


def _fig1(config: Config) -> dict[str, Any]:
    return {
        "after": _after(config),
        "sequence": config.trajectories.states_sequence,
        "shown_tokens": config.figures.fig1_tokens,
        "groups": _groups(config),
        "loops": config.trajectories.loops,
    }


def _all_seeds(config: Config) -> str:
    """The seeds of a run that has several; else empty."""
    return _seed_list(config) if one_seed(config) is None else ""


def _seed_list(config: Config) -> str:
    return ", ".join(map(str, dict.fromkeys((config.seed, *config.seeds))))


def _seed_band(config: Config) -> dict[str, Any]:
    """The seeds whose range a figure shows."""
    return {"band": _all_seeds(config) if config.figures.seed_band else ""}


def _curves(config: Config) -> dict[str, Any]:
    return _trajectories(config) | _seed_band(config)


def _fig2(config: Config) -> dict[str, Any]:
    return _seed_band(config) | {
        "boundaries": _boundaries(config),
        "core": _groups(config) if len(config.model.groups) == 1 else None,
        "loops": config.trajectories.loops,
        "tokens": config.trajectory_sequences * config.model.context_length,
        "reference_state": config.figures.dlr_reference_state,
    }


def _exits(config: Config) -> dict[str, Any]:
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


def _pareto(config: Config) -> dict[str, Any]:
    return _exits(config) | {
        "after": _after(config),
        "loops": ", ".join(map(str, config.loop_grid)),
        "latency_tokens": config.pareto.latency_tokens,
        "latency_repeats": config.pareto.latency_repeats,
        "quality_tokens": config.pareto_sequences * config.model.context_length,
    }


def _arena(config: Config) -> dict[str, Any]:
    said = ("after", "max_loops", "dtype", "readout", "draws", "quality_tokens")
    return {name: value for name, value in _pareto(config).items() if name in said} | {
        "groups": _groups(config),
        "oracle_tokens": config.oracle_sequences * config.model.context_length,
    }


def _calibration(config: Config) -> dict[str, Any]:
    shares = (config.calibration.search_share, config.calibration.report_share)
    search, report = (f"{100 * share:g}" for share in shares)
    return {
        "after": _after(config),
        "max_loops": config.exits.max_loops,
        "dtype": config.exits.dtype,
        "readout": config.exits.readout.replace("_", " "),
        "tokens": config.calibration_sequences * config.model.context_length,
        "search": search,
        "report": report,
        "path_end": f"{config.calibration.path_end:g}",
        "probability": f"{1 - config.promises.delta:g}",
        "clip": f"{config.promises.clip:g}",
        "unit": config.promises.unit,
        "test": {"betting": "betting", "hoeffding_bentkus": "Hoeffding's and Bentkus' bounds"}[config.promises.test],
    }


def _throughput(config: Config) -> dict[str, Any]:
    prompt, tokens = config.throughput_tokens
    return {
        "after": _after(config),
        "max_loops": config.exits.max_loops,
        "dtype": config.exits.dtype,
        "device": config.compute.device,
        "sequences": ", ".join(map(str, config.throughput.sequences)),
        "prompt": prompt,
        "tokens": tokens,
        "repeats": config.throughput.repeats,
        "threads": config.throughput.cpu_threads,
    }


def _training(config: Config) -> dict[str, Any]:
    return {
        "groups": _groups(config),
        "batch_tokens": config.train.batch_size * config.model.context_length,
        "held_out_tokens": config.train.held_out_sequences * config.model.context_length,
        "held_out_loops": config.train.held_out_loops,
        "near_duplicate_tokens": config.data.near_duplicate_tokens,
        "mean_loops": f"{config.model.mean_loops:g}",
        "grad_clip": f"{config.train.grad_clip:g}",
    }


def _scaling(config: Config) -> dict[str, Any]:
    return {
        "loops": ", ".join(map(str, config.scaling.loops)),
        "tokens": config.scaling_sequences * config.model.context_length,
        "near_duplicate_tokens": config.data.near_duplicate_tokens,
        "mean_loops": f"{config.model.mean_loops:g}",
        "dtype": config.scaling.dtype,
    }


def _lens(config: Config) -> dict[str, Any]:
    return {
        "after": _after(config),
        "groups": _groups(config),
        "tokens": config.lens_sequences * config.model.context_length,
        "last": config.lens_steps[-1],
        "other_loops": config.lens_other_loops,
        "mean_loops": f"{config.model.mean_loops:g}",
        "typical_loops": config.model.typical_loops,
        "dtype": config.lens.dtype,
    }


def _path_types(config: Config) -> dict[str, Any]:
    return _trajectories(config) | {"path_types": plain(config.path_types)}


def _path_independence(config: Config) -> dict[str, Any]:
    return {
        "groups": _groups(config),
        "loops": config.trajectories.loops,
        "dtype": config.trajectories.dtype,
        "draws": config.path_independence.draws,
        "tokens": config.independence_sequences * config.model.context_length,
    }


def _spectrum(config: Config) -> dict[str, Any]:
    named = ("steps", "window", "slowed_position", "slow_factor", "dtype")
    return {name: getattr(config.spectrum, name) for name in named} | {
        "groups": _groups(config),
        "after": _after(config),
        "loops": config.trajectories.loops,
        "exact_tokens": config.exact_sequences * config.model.context_length,
        "method": "dense blocks" if config.model.hidden_size <= config.spectrum.dense_size else "Arnoldi's method",
    }


def _variants(config: Config) -> dict[str, Any]:
    values = config.variants
    return _trajectories(config) | {
        "runs": len(values.sandwich) * len(values.adapter_init) * len(values.state_init),
        "seeds": _all_seeds(config),
        "boundaries": _boundaries(config),
        "reference_state": config.figures.dlr_reference_state,
        "iterations": config.train.iterations,
        "training_tokens": config.train.iterations * config.train.batch_size * config.model.context_length,
        "held_out_loops": config.train.held_out_loops,
        "num_layers": config.model.num_layers,
        "hidden_size": config.model.hidden_size,
    }


def _seeds(config: Config) -> dict[str, Any]:
    return {
        "seeds": _all_seeds(config),
        "loops": config.trajectories.loops,
    }


def _controls(config: Config) -> dict[str, Any]:
    return {
        "held_out_loops": config.train.held_out_loops,
        "tokens": config.scaling_sequences * config.model.context_length,
        "mean_loops": f"{config.model.mean_loops + 1:g}",
        "dtype": config.scaling.dtype,
    }


def _starts(config: Config) -> dict[str, Any]:
    return _trajectories(config) | {
        "seeds": _seed_list(config),
        "iterations": config.train.iterations,
        "training_tokens": config.train.iterations * config.train.batch_size * config.model.context_length,
        "held_out_loops": config.train.held_out_loops,
        "num_layers": config.model.num_layers,
        "hidden_size": config.model.hidden_size,
    }


# --- the figures ----------------------------------------------------------------------------------------------------


def _max_loops(config: Config) -> float:
    return config.exits.max_loops


def _reference_state(config: Config) -> dict[str, Any]:
    return {"reference_state": config.figures.dlr_reference_state}


FIGURES = (
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
        values=_reference_state,
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
        _exits,
        loops=_max_loops,
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
    Figure(
        "training",
        table("training", "training_loops"),
        _training,
        loops=lambda config: config.train.held_out_loops,
        values=lambda config: {"mean_loops": config.model.mean_loops, "grad_clip": config.train.grad_clip},
        groups=0,
        training=True,
    ),
    Figure(
        "scaling",
        table("scaling"),
        _scaling,
        title="Quality against loops",
        loops=lambda config: max(config.scaling.loops),
        values=lambda config: {"mean_loops": config.model.mean_loops},
    ),
    Figure(
        "lens",
        table("lens"),
        _lens,
        title="Lens: through the loops",
        loops=lambda config: config.lens_steps[-1],
        values=lambda config: {"mean_loops": config.model.mean_loops, "typical_loops": config.model.typical_loops},
    ),
    Figure(
        "pareto",
        table(
            "uniform_loops",
            exit_latency="pareto_latency",
            exit_quality="pareto_quality",
            exit_loops="pareto_loops",
            exit_controls="pareto_controls",
        ),
        _pareto,
        loops=_max_loops,
        title="Pareto: quality against latency",
        claims=(10,),
    ),
    Figure("arena", table("arena"), _arena, loops=_max_loops, title="Arena: what the exits are worth"),
    Figure(
        "calibration",
        table("calibration"),
        _calibration,
        loops=_max_loops,
        title="Calibration: evaluations saved at a promised quality",
    ),
    Figure(
        "throughput",
        table("throughput"),
        _throughput,
        loops=_max_loops,
        title="Throughput: sequences decoded together",
    ),
    Figure("path_types", table("path_types", "path_metrics"), _path_types, claims=(13,)),
    Figure(
        "path_independence",
        table("path_independence"),
        _path_independence,
        values=lambda config: {"dtype": config.trajectories.dtype},
        noise=True,
    ),
    Figure(
        "spectrum",
        table("token_spectrum", "spectrum"),
        _spectrum,
        loops=lambda config: config.spectrum.steps,
        title="Spectrum of a loop",
        claims=(3, 4, 5),
    ),
    Figure(
        "variants",
        table("loop_metrics", "drift", "training"),
        _variants,
        values=_reference_state,
        target="variants",
        training=True,
        study="variants",
    ),
    Figure(
        "starts",
        table("starts"),
        _starts,
        target="starts",
        title="Starts of the projection",
        claims=(4,),
        training=True,
        study="starts",
        compared=True,
        projection=True,
    ),
    Figure(
        "controls",
        table("controls"),
        _controls,
        loops=lambda config: config.train.held_out_loops,
        target="controls",
        title="Controls: what the loops buy",
        training=True,
    ),
    Figure("seeds", table("seeds"), _seeds, target="seeds", title="Seeds: verdicts and spread", seeds=True),
)


def snapshot_figures(figures: Iterable[Figure], chosen: Iterable[Figure] = ()) -> list[Figure]:
    """Those of `figures` that a snapshot has: the figures of the paper, that of training, and the chosen ones."""
    chosen = list(chosen)
    return [figure for figure in figures if figure.target == "all" or figure.name == "training" or figure in chosen]
