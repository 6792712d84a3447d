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
from twoscale.fingerprint import fingerprint


def load_runs():
    """Name -> settings: the chosen run first, then those under `runs:`."""
    try:
        return configuration.runs(config)
    except InputError as error:
        raise WorkflowError(str(error))


RUNS = load_runs()
RUN = next(iter(RUNS))


def data_run(run):
    """The run whose text and tokens `run` trains on: the chosen one, unless its data settings differ."""
    own, chosen = RUNS[run], RUNS[RUN]
    return RUN if (own.data, own.tokens) == (chosen.data, chosen.tokens) else run


def checkpoint_steps(run):
    return library_settings.checkpoint_steps(RUNS[run].train)


def previous_step(run, step):
    """The step that the segment ending at `step` starts from."""
    steps = [0, *checkpoint_steps(run)]
    if step not in steps[1:]:
        raise WorkflowError(f"run {run}: no checkpoint at step {step}, expected one of {steps[1:]}.")
    return steps[steps.index(step) - 1]


def checkpoint(run, step):
    return f"results/{run}/checkpoints/step_{step:06d}.safetensors"


def last_checkpoint(wildcards):
    return checkpoint(wildcards.run, checkpoint_steps(wildcards.run)[-1])


def every_step(pattern, untrained=True):
    """Input function: `pattern` at every checkpoint of the run, with or without the untrained model."""
    first = [0] if untrained else []
    return lambda wildcards: [
        pattern.format(run=wildcards.run, step=step) for step in first + checkpoint_steps(wildcards.run)
    ]


def data_file(name):
    """Input function: a file of the text and tokens that the run trains on."""
    return lambda wildcards: f"results/{data_run(wildcards.run)}/data/{name}"


def tokenizer_file(wildcards):
    """Input function: the run's own tokenizer, where it has one."""
    return data_file("tokenizer.json")(wildcards) if RUNS[wildcards.run].tokens.tokenizer == "bpe" else []


def tokenizer_option(wildcards, input):
    """Param function: the option that hands over the run's own tokenizer, where it has one."""
    return f"--tokenizer {input.tokenizer}" if input.tokenizer else ""


def settings_json(**slices):
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


def block(run, settings):
    return settings.model.block


# --- data


def text_shards(wildcards):
    return [data_file(f"text/{shard}.parquet")(wildcards) for shard in TEXT_SHARDS]


# --- training


def training_settings(wildcards):
    return library_settings.canonical_json(library_settings.training_identity(RUNS[wildcards.run]))


def operation(wildcards, output):
    # `output` is asked for so that Snakemake does not track it: how a run is cut, watched and spread
    # changes no result
    return library_settings.canonical_json(library_settings.operation(RUNS[wildcards.run]))


def launch(wildcards, output):
    """Param function, untracked as `operation` is: what starts the trainer, one process or several."""
    processes = RUNS[wildcards.run].train.processes
    return "python" if processes == 1 else f"torchrun --standalone --nproc-per-node {processes}"


def segment_start(wildcards):
    """The checkpoint that a segment starts from, and its optimizer state unless that is the start of all."""
    step = previous_step(wildcards.run, int(wildcards.step))
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


def figure_settings(**extra):
    """Param: what a figure needs to know of its run, as one canonical JSON string."""
    settings = RUNS[RUN]
    return library_settings.canonical_json({"run": RUN, "text": library_settings.text_label(settings.data), **extra})


def caption(wildcards, output):
    """Param: the values that captions quote. `output` is asked for so that no value here redraws a figure."""
    settings = RUNS[RUN]
    block = settings.model.block
    return {
        "run": RUN,
        "text": library_settings.text_label(settings.data),
        "step": checkpoint_steps(RUN)[-1],
        "groups": ", ".join(settings.model.group_labels).replace("-", "–"),
        "boundaries": ", ".join(settings.model.boundary_labels).replace("->", " → ").replace("-", "–"),
        "budget": settings.exits.budget if "fig4" in str(output) else settings.trajectories.budget,
        "dtype": settings.exits.dtype if "fig4" in str(output) else settings.trajectories.dtype,
        "tokens": settings.trajectory_sequences * block,
        "sequence": settings.trajectories.states_sequence,
        "shown_tokens": settings.figures.fig1_tokens,
        "reading": settings.figures.dlr_reading,
        "device": settings.compute.device,
        "latency_tokens": settings.exits.latency_tokens,
        "latency_repeats": settings.exits.latency_repeats,
        "quality_tokens": settings.quality_sequences * block,
    }


def in_report(name):
    return report(f"results/{name}.pdf", caption=f"../report/{name}.rst", category="Figures of the paper")


# --- report


def page_category(wildcards):
    return "Claims" if wildcards.table == "claims" else "Tables"


def table_page_settings(wildcards):
    return library_settings.canonical_json({"run": RUN, "table": wildcards.table})
