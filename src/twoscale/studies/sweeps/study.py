"""Sweeps: the model trained again under other choices, as variants of the paper, adapter
initialisations and baselines.

The baselines have no loops. Of the same parameters: as many layers, each applied once, and an MLP
that is wider by the parameters of the projections. Of the same FLOPs: more layers of the same size,
so that a training pass costs as much per token as that of the looped model at its mean loop count.
Saunshi et al. (2025, arXiv 2502.17416) compare a k-layer model that is looped L times with these
two, k and k L layers. All see the same tokens, so equal FLOPs per token are equal FLOPs of
training.
"""

from itertools import product
from typing import TYPE_CHECKING, Any

from twoscale.base import InputError
from twoscale.config import checked, merge
from twoscale.config.data import text_label
from twoscale.config.definitions import init_name
from twoscale.config.model import HALF, model_keys
from twoscale.config.types import complete
from twoscale.figures.catalogue import Figure, inputs_from, reading, reference_state
from twoscale.model.flops import mean_flops_per_token, parameters
from twoscale.tables import table as columns

if TYPE_CHECKING:
    from twoscale.config import Config, ScalingConfig
    from twoscale.workflow.runs import Runs

QUALITY = "results/{run}/baselines/iteration_{iteration}.parquet"
LOOPED, UNTRAINED = "looped", "untrained"


def runs(selected: "Config") -> dict[str, dict[str, Any]]:
    """Sweep -> name of a run -> overrides."""
    return {
        "adapter_init": _starts(selected),
        "baselines": _baselines(selected),
        "variants": _variants(selected),
    }


def _variants(selected: "Config") -> dict[str, Any]:
    """Name <sandwich>-<adapter_init>-<state_init> -> overrides."""
    keys = ("sandwich", "adapter_init", "state_init")
    combinations = product(*(getattr(selected.variants, key) for key in keys))
    return {"-".join(values): {"model": model_keys(keys, values)} for values in combinations}


def _starts(selected: "Config") -> dict[str, Any]:
    """Name <share or random>-<state_init>-<sandwich> -> overrides; none for a model without a
    projection.
    """
    if selected.model.injection != "projection":
        return {}
    sweep, keys = selected.adapter_init, ("adapter_init", "adapter_share", "state_init", "sandwich")
    starts = [("blend", share) for share in sweep.shares] + [("random", HALF)] * sweep.random
    found = {}
    for start, *further in product(starts, sweep.state_init, sweep.sandwich):
        name = "-".join([init_name(*start), *further])
        found[name] = {"model": model_keys(keys, (*start, *further))}
    return found


def _baselines(selected: "Config") -> dict[str, Any]:
    """Name -> overrides, also of the looped model if the sweep has overrides; none for a run
    without looped groups.
    """
    values = complete(selected)
    del values["model"]["vocab_size"]  # follows from the tokenizer
    config = checked(merge(values, selected.baselines.overrides))
    if not config.model.groups:
        return {}
    unlooped = {"groups": [], "loop_norm": False}  # the final norm of a looped last layer
    model = config.model.model_copy(update=unlooped)
    # each channel of the MLP adds as many parameters: the nearest width
    wider = model.model_copy(update={"mlp_size": model.mlp_width + 1})
    missing = parameters(config.model) - parameters(model)
    width = model.mlp_width + round(missing / (parameters(wider) - parameters(model)))
    # each layer adds as many training FLOPs per token: the nearest number; no loops, no gate
    train = config.train.model_copy(update={"exit_gate": None})
    one, two = (
        mean_flops_per_token(model.model_copy(update={"num_layers": layers}), train).total
        for layers in (1, 2)
    )
    looped = mean_flops_per_token(config.model, config.train).total
    layers = max(1, 1 + round((looped - one) / (two - one)))
    sizes = {"parameters": {"mlp_size": width}, "flops": {"num_layers": layers}}
    found: dict[str, Any] = {LOOPED: {}} if selected.baselines.overrides else {}
    for name, keys in sizes.items():
        found[name] = {"model": unlooped | keys, "train": {"exit_gate": None}}
    return found


# --- tables and figures ---------------------------------------------------------------------------

DIFFERENCE = "interval of the difference over"
TABLES = {
    # One row per (adapter initialisation, seed, checkpoint, group, measure), and the same over all
    # seeds.
    "adapter_init": columns(
        "share state_init sandwich seed iteration",
        share=(
            "float64",
            "share of the state in the adapter initialisation; null for random weights",
        ),
        state_init=("string", "initial state of a loop"),
        sandwich=("string", "position of the second norm"),
        seed=("string", 'seed, or "all" for the mean over the seeds'),
        group=("string", 'looped group, or "all" for the whole model'),
        measure=("string", "late_cosine, or held_out_loss in nats per token"),
        value=("float64", "null if it cannot be measured"),
        low=(
            "float64",
            'lower end of the 95 % interval over documents, and for "all" also over seeds',
        ),
        high=("float64", "upper end of the interval"),
        verdict=("string", "verdict on a late cosine, by the bounds of claim 4"),
        reason=("string", "reason for the verdict, or for a missing value"),
    ),
    # One row per (model, seed), and one per model for the mean over seeds: held-out cross-entropy
    # of the looped model at train.held_out_loops, of models without loops, and of the untrained
    # looped model. Intervals are 95 % intervals.
    "baselines": columns(
        "run model seed seeds layers parameters flops iteration tokens documents ce",
        model=(
            "string",
            "looped; parameters or flops: without loops, with the same number of these; untrained",
        ),
        seed=("int64", "seed; null for the mean over seeds"),
        seeds=("int32", "number of seeds that the row covers"),
        layers=("int32",),
        parameters=("int64",),
        flops=("float64", "training FLOPs per token at the mean loop count"),
        ce_low=("float64", "interval of ce over documents, lower end"),
        ce_high=("float64", "interval of ce over documents, upper end"),
        difference=(
            "float64",
            "ce minus ce of the looped model with the same seed, on the same documents",
        ),
        difference_low=("float64", f"{DIFFERENCE} documents; for the mean, also over seeds"),
        difference_high=("float64", "upper end of this interval"),
        documents_low=("float64", f"{DIFFERENCE} documents alone, lower end"),
        documents_high=("float64", "upper end of this interval"),
        seeds_low=("float64", f"{DIFFERENCE} seeds alone, lower end; null for one seed"),
        seeds_high=("float64", "upper end of this interval"),
    ),
}
FIGURES = (
    Figure(
        "adapter_init",
        inputs_from("adapter_init"),
        target="adapter_init",
        title="Adapter initialisations",
        claims=(4,),
        training=True,
        study="adapter_init",
        compared=True,
        projection=True,
    ),
    Figure(
        "baselines",
        inputs_from("baselines"),
        page=True,
        loops=lambda config: config.train.held_out_loops,
        target="baselines",
        title="Baselines: what the loops buy",
        training=True,
        sentence="twoscale.studies.sweeps.draw.baselines_sentence",
    ),
    Figure(
        "variants",
        inputs_from("loop_metrics", "drift", "training"),
        values=lambda config: reference_state(config) | reading(config),
        target="variants",
        training=True,
        study="variants",
    ),
)

# --- inputs and params of its rules ---------------------------------------------------------------


def labels(runs: "Runs") -> list[dict[str, Any]]:
    """Start, first state, norm and seed of each run of "adapter_init"; the share is null for random
    weights.
    """
    found = []
    for run in runs.study("adapter_init"):
        model = runs[run].model
        share = model.adapter_share if model.adapter_init == "blend" else None
        keys = {"state_init": model.state_init, "sandwich": model.sandwich}
        found.append(keys | {"share": share, "seed": runs[run].seed})
    return found


def compared(runs: "Runs") -> list[dict[str, Any]]:
    """The compared models; the looped one is the selected run under every seed, unless the sweep
    has overrides.
    """
    # run -> model, such as baselines/flops-seed1338 -> flops
    names = {
        run: run.removeprefix("baselines/").partition("-seed")[0] for run in runs.study("baselines")
    }
    if LOOPED not in names.values():
        # the sweep does not train the looped model again
        names = dict.fromkeys(runs.seed_runs, LOOPED) | names
    points = [(name, run, runs.iterations(run)[-1]) for run, name in names.items()]
    # the untrained model is the looped one before its first iteration
    points += [(UNTRAINED, run, 0) for run, name in names.items() if name == LOOPED]
    found = []
    for name, run, iteration in points:
        config = runs[run]
        keys = {"model": name, "run": run, "seed": config.seed, "iteration": iteration}
        sizes = {"parameters": parameters(config.model), "layers": config.model.num_layers}
        flops = mean_flops_per_token(config.model, config.train).total
        found.append(keys | sizes | {"flops": flops})
    return found


def baseline_files(runs: "Runs") -> list[str]:
    """The quality of each compared model. InputError for a run without baselines."""
    if not runs.study("baselines"):
        raise InputError(
            f"results/baselines.md: run {runs.selected} has no baselines, expected a looped model"
            f" trained here."
        )
    return [QUALITY.format(run=m["run"], iteration=f"{m['iteration']:06d}") for m in compared(runs)]


def scaling(config: "Config") -> "ScalingConfig":
    """The section `scaling` with the loop count of training's held-out loss."""
    return config.scaling.model_copy(update={"loops": (config.train.held_out_loops,)})


def page(runs: "Runs") -> dict[str, Any]:
    """Values of baselines.md that are not in the table."""
    config = runs[compared(runs)[0]["run"]]
    return {
        "run": runs.selected,
        "text": text_label(runs.config.data),
        "loops": config.train.held_out_loops,
        "mean_loops": f"{config.model.mean_loops + 1:g}",
        "iterations": config.train.iterations,
        "training_tokens": config.training_tokens,
    }
