# The configuration, and what the rules ask of it.
#
# Settings are layered: paper.yaml <- preset <- config.yaml <- --configfile. A run is a name with settings of
# its own: the one chosen by `run`, and those under `runs:` (name -> overrides).

import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

SCRIPTS = Path(workflow.basedir) / "scripts"
sys.path.insert(0, str(SCRIPTS))
# jobs call `python`: the one that runs Snakemake, unless a conda environment is put in front
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))

from twoscale import configuration, tables
from twoscale import settings as library_settings
from twoscale.errors import InputError
from twoscale.fingerprint import fingerprint, of_criterion_file


def load_runs():
    """Name -> settings: the chosen run first, then those under `runs:`, then those of the readings study."""
    try:
        return configuration.runs(config) | configuration.readings(config)
    except InputError as error:
        raise WorkflowError(str(error))


RUNS = load_runs()
RUN = next(iter(RUNS))


def data_run(run):
    """The run whose text and tokens `run` trains on: the chosen one, unless its data settings differ."""
    own, chosen = RUNS[run], RUNS[RUN]
    return RUN if (own.data, own.tokens) == (chosen.data, chosen.tokens) else run


def checkpoint_iterations(run):
    return library_settings.checkpoint_iterations(RUNS[run].train)


def previous_iteration(run, step):
    """The step that the segment ending at `step` starts from."""
    steps = [0, *checkpoint_iterations(run)]
    if step not in steps[1:]:
        raise WorkflowError(f"run {run}: no checkpoint at step {iteration}, expected one of {steps[1:]}.")
    return steps[steps.index(step) - 1]


def checkpoint(run, step):
    return f"results/{run}/checkpoints/iteration_{iteration:06d}.safetensors"


def last_checkpoint(wildcards):
    return checkpoint(wildcards.run, checkpoint_iterations(wildcards.run)[-1])


def every_checkpoint(pattern, untrained=True):
    """Input function: `pattern` at every checkpoint of the run, with or without the untrained model."""
    first = [0] if untrained else []
    return lambda wildcards: [
        pattern.format(run=wildcards.run, iteration=iteration) for step in first + checkpoint_iterations(wildcards.run)
    ]


def data_file(name):
    """Input function: a file of the text and tokens that the run trains on."""
    return lambda wildcards: f"results/{data_run(wildcards.run)}/data/{name}"


def tokenizer_file(wildcards):
    """Input function: the file of the run's tokenizer, where it has one."""
    match RUNS[wildcards.run].tokenizer.name:
        case "gpt2":
            return GPT2
        case "bpe":
            return data_file("tokenizer.json")(wildcards)
        case _:
            return []


def tokenizer_option(wildcards, input):
    """Param function: the option that hands over the file of a tokenizer, where there is one."""
    return f"--tokenizer {input.tokenizer}" if input.tokenizer else ""


def config_json(**slices):
    """Param function: one canonical JSON string of the settings that matter to a rule.

    One string, because Snakemake compares several params as a set. Each value is a function of
    (run name, settings of the run).
    """
    return lambda wildcards: library_settings.canonical_json(
        {name: take(wildcards.run, RUNS[wildcards.run]) for name, take in slices.items()}
    )


def section(name):
    return lambda run, settings: vars(getattr(settings, name))


def run_name(run, settings):
    return run


def seed(run, settings):
    return settings.seed


def device(run, settings):
    return settings.compute.device


def written(*names):
    """Param function: the columns of the tables that a rule writes, of the chosen run unless it has a wildcard."""
    return lambda wildcards: library_settings.canonical_json(
        {name: tables.columns(name, RUNS[wildcards.get("run", RUN)].model.group_labels) for name in names}
    )


def code(script):
    """Param: fingerprint of scripts/`script`.py and of the library behind it."""
    return fingerprint(SCRIPTS / f"{script}.py")


def gpus(wildcards):
    """Resource function: GPUs of a job that computes with torch."""
    return int(RUNS[wildcards.run].compute.device == "cuda")


def training_gpus(wildcards):
    """Resource function: GPUs of a training job, one a process."""
    return gpus(wildcards) * RUNS[wildcards.run].train.processes


def training_threads(wildcards):
    """Threads of a training job, all processes together."""
    train = RUNS[wildcards.run].train
    return train.cpu_threads * train.processes


def training_cpus(wildcards):
    """Resource function: CPUs of a training job; beside each GPU also for reading ahead and compiling."""
    return max(training_threads(wildcards), 4 * training_gpus(wildcards))


def growing(amount):
    """Resource function: more with every attempt, for a job that may have ended for want of it."""
    return lambda wildcards, attempt: amount * attempt


def last_analyses(wildcards):
    """The group of jobs that analyse the last checkpoint, as `analyses_{run}_{iteration}` names it."""
    return f"analyses_{wildcards.run}_{checkpoint_iterations(wildcards.run)[-1]:06d}"


def block(run, settings):
    return settings.model.context_length


# --- data


GPT2 = "results/gpt2.tiktoken"


def text_shards(wildcards):
    return [data_file(f"text/{shard}.parquet")(wildcards) for shard in TEXT_SHARDS]


def counting_tokenizer(wildcards):
    """Input function: the tokenizer that text is counted with, where that is not done in characters."""
    return GPT2 if RUNS[wildcards.run].tokenizer.name == "gpt2" else []


def text_of(run):
    """What the later jobs of `run` cannot make without a network."""
    folder = f"results/{data_run(run)}/data/text"
    gpt2 = [GPT2] if RUNS[run].tokenizer.name == "gpt2" else []
    return [f"{folder}/{shard}.parquet" for shard in TEXT_SHARDS] + gpt2


def text_source(run, settings):
    """`data` without its budgets, of which only one counts."""
    return vars(settings.data) | {"tokens": None, "characters": None}


def text_budget(run, settings):
    return vars(library_settings.budget(settings.data, settings.tokens))


def tokenizer_name(run, settings):
    return settings.tokenizer.name


def held_out_tokens(run, settings):
    return settings.data.held_out_tokens


def download(wildcards, output):
    # `output` is asked for so that Snakemake does not track it: how text is downloaded changes no text
    return library_settings.canonical_json(vars(RUNS[wildcards.get("run", RUN)].download))


# --- training


def training_config(wildcards):
    return library_settings.canonical_json(library_settings.training_identity(RUNS[wildcards.run]))


def runtime(wildcards, output):
    # `output` is asked for so that Snakemake does not track it: how a run is cut, watched and spread
    # changes no result
    return library_settings.canonical_json(config.runtime(RUNS[wildcards.run]))


def launch(wildcards, output):
    """Param function, untracked as `operation` is: what starts the trainer, one process or several."""
    processes = RUNS[wildcards.run].train.processes
    # after "--" torchrun takes no option of the trainer for an ambiguous one of its own
    interpreter = "python" if processes == 1 else f"torchrun --standalone --nproc-per-node {processes} --"
    return with_gpus(training_gpus(wildcards)) + interpreter


def launch_alone(wildcards, output):
    """Param function, untracked: what starts a script that computes with torch in one process."""
    return with_gpus(gpus(wildcards)) + "python"


def with_gpus(count):
    return f"python scripts/with_gpus.py {count} " if count else ""


def segment_start(wildcards):
    """The checkpoint that a segment starts from, and its optimizer state unless that is the start of all."""
    step = previous_iteration(wildcards.run, int(wildcards.iteration))
    weights = checkpoint(wildcards.run, step)
    return [weights, weights.replace(".safetensors", ".optimizer.safetensors")] if step else [weights]


# --- figures


def drawable_figures():
    """Figures that the model's groups allow: a drift needs two groups, everything else one."""
    groups = RUNS[RUN].model.groups
    names = (
        (["fig1"] if groups else [])
        + (["fig2"] if len(groups) > 1 else [])
        + (["fig3", "fig4", "fig5"] if groups else [])
    )
    return [f"results/{name}.pdf" for name in names]


def judged_claims():
    """The claims are about loops: a model without groups has none to judge."""
    return ["results/claims.md"] if RUNS[RUN].model.groups else []


def figure_config(**extra):
    """Param: what a figure needs to know of its run, as one canonical JSON string."""
    settings = RUNS[RUN]
    return library_settings.canonical_json({"run": RUN, "text": library_settings.text_label(settings.data), **extra})


def caption(wildcards, output):
    """Param: the values that captions quote. `output` is asked for so that no value here redraws a figure."""
    settings = RUNS[RUN]
    block = settings.model.context_length
    return {
        "run": RUN,
        "text": library_settings.text_label(settings.data),
        "iteration": checkpoint_iterations(RUN)[-1],
        "groups": ", ".join(settings.model.group_labels).replace("-", "–"),
        "boundaries": ", ".join(settings.model.boundary_labels).replace("->", " → ").replace("-", "–"),
        "budget": settings.exits.max_loops if "fig4" in str(output) else settings.trajectories.loops,
        "dtype": settings.exits.dtype if "fig4" in str(output) else settings.trajectories.dtype,
        "tokens": settings.trajectory_sequences * block,
        "sequence": settings.trajectories.states_sequence,
        "shown_tokens": settings.figures.fig1_tokens,
        "reading": settings.figures.dlr_reference_state,
        "device": settings.compute.device,
        "decoder": settings.exits.readout.replace("_", " "),
        "kv_slots": settings.exits.kv_slots,
        "latency_tokens": settings.exits.latency_tokens,
        "latency_repeats": settings.exits.latency_repeats,
        "quality_tokens": settings.quality_sequences * block,
        "batch_tokens": settings.train.batch_size * block,
        "held_out_tokens": settings.train.held_out_sequences * block,
        "held_out_loops": settings.train.held_out_loops,
        "mean_loops": f"{settings.model.mean_loops:g}",
        "clip": f"{settings.train.grad_clip:g}",
    }


def in_report(name, category="Figures of the paper"):
    return report(f"results/{name}.pdf", caption=f"../report/{name}.rst", category=category)


def in_supplement(name):
    return in_report(name, category="Supplementary figures")


# --- exit rules of the user, quality against loops


def criterion_files(take):
    """Slice of settings: fingerprints of the files with exit rules of the user among those that `take` returns."""

    def digests(run, settings):
        try:
            return {name: of_criterion_file(rule["file"]) for name, rule in take(settings).items() if "file" in rule}
        except InputError as error:
            raise WorkflowError(str(error))

    return digests


exit_criterion_files = criterion_files(lambda settings: settings.exits.criteria)
dense_criterion_files = criterion_files(lambda settings: settings.dense_exits.rules)


def dense_exits(run, settings):
    return vars(settings.dense_exits)


def scaling_caption(wildcards, output):
    settings = RUNS[RUN]
    return caption(wildcards, output) | {
        "loops": ", ".join(map(str, settings.scaling.loops)),
        "tokens": settings.scaling_sequences * settings.model.context_length,
        "mean_loops": settings.model.mean_loops,
        "dtype": settings.scaling.dtype,
    }


def pareto_caption(wildcards, output):
    settings = RUNS[RUN]
    return caption(wildcards, output) | {
        "loops": ", ".join(map(str, settings.loop_grid)),
        "budget": settings.exits.max_loops,
        "dtype": settings.exits.dtype,
        "latency_tokens": settings.pareto.latency_tokens,
        "latency_repeats": settings.pareto.latency_repeats,
        "quality_tokens": settings.pareto_sequences * settings.model.context_length,
    }


# --- path_types of trajectories


def path_types_caption(wildcards, output):
    """Param: what the captions of path_types and path independence quote besides `caption`."""
    settings = RUNS[RUN]
    return caption(wildcards, output) | {
        "path_types": vars(settings.path_types),
        "draws": settings.path_independence.draws,
        "independence_tokens": settings.independence_sequences * settings.model.context_length,
    }


# --- readings


def reading_names():
    """Run of the readings study -> the values that tell it from the others."""
    return {
        run: [getattr(settings.model, key) for key in configuration.READINGS]
        for run, settings in RUNS.items()
        if run.startswith("readings/")
    }


def readings_caption(wildcards, output):
    """Param: what the caption of the readings quotes."""
    settings = RUNS[next(iter(reading_names()))]
    model = settings.model
    return caption(wildcards, output) | {
        "runs": len(reading_names()),
        "iterations": settings.train.iterations,
        "training_tokens": settings.train.iterations * settings.train.batch_size * model.context_length,
        "layers": model.num_layers,
        "width": model.hidden_size,
        "budget": settings.trajectories.loops,
        "dtype": settings.trajectories.dtype,
        "tokens": settings.trajectory_sequences * model.context_length,
        "held_out_loops": settings.train.held_out_loops,
    }


# --- report


def page_category(wildcards):
    return "Claims" if wildcards.table == "claims" else "Tables"


def table_page_config(wildcards):
    return library_settings.canonical_json({"run": RUN, "table": wildcards.table})
