# The figures of the paper, for the run chosen by `run`: rule, script, caption and module share a name.
#
# in:  results/{run}/tables/*.parquet; for Fig. 1 results/{run}/states.safetensors
# out: results/fig*.pdf


def drawable_figures():
    """Figures that the model's groups allow: a drift needs two groups, everything else one."""
    groups = RUNS[RUN].model.groups
    names = (["fig1"] if groups else []) + (["fig2"] if len(groups) > 1 else []) + (["fig3", "fig4", "fig5"] if groups else [])
    return [f"results/{name}.pdf" for name in names]


FIGURES = drawable_figures()


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
        "groups": ", ".join(settings.model.group_labels),
        "boundaries": ", ".join(settings.model.boundary_labels),
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


rule fig1:
    input:
        states=f"results/{RUN}/states.safetensors",
    output:
        in_report("fig1"),
    params:
        settings=figure_settings(tokens=RUNS[RUN].figures.fig1_tokens),
        code=code("fig1"),
        caption=caption,
    log:
        "results/logs/fig1.log",
    conda:
        "../../envs/analysis.yaml"
    shell:
        "python scripts/fig1.py --settings {params.settings:q} --states {input.states:q} --output {output:q} > {log:q} 2>&1"


rule fig2:
    input:
        drift=f"results/{RUN}/tables/drift.parquet",
    output:
        in_report("fig2"),
    params:
        settings=figure_settings(budget=RUNS[RUN].trajectories.budget, reading=RUNS[RUN].figures.dlr_reading),
        code=code("fig2"),
        caption=caption,
    log:
        "results/logs/fig2.log",
    conda:
        "../../envs/analysis.yaml"
    shell:
        "python scripts/fig2.py --settings {params.settings:q} --drift {input.drift:q} --output {output:q} > {log:q} 2>&1"


rule fig3:
    input:
        loops=f"results/{RUN}/tables/loop_metrics.parquet",
    output:
        in_report("fig3"),
    params:
        settings=figure_settings(budget=RUNS[RUN].trajectories.budget),
        code=code("fig3"),
        caption=caption,
    log:
        "results/logs/fig3.log",
    conda:
        "../../envs/analysis.yaml"
    shell:
        "python scripts/fig3.py --settings {params.settings:q} --loops {input.loops:q} --output {output:q} > {log:q} 2>&1"


rule fig4:
    input:
        latency=f"results/{RUN}/tables/exit_latency.parquet",
        quality=f"results/{RUN}/tables/exit_quality.parquet",
    output:
        in_report("fig4"),
    params:
        settings=figure_settings(budget=RUNS[RUN].exits.budget),
        code=code("fig4"),
        caption=caption,
    log:
        "results/logs/fig4.log",
    conda:
        "../../envs/analysis.yaml"
    shell:
        "python scripts/fig4.py --settings {params.settings:q} --latency {input.latency:q} --quality {input.quality:q}"
        " --output {output:q} > {log:q} 2>&1"


rule fig5:
    input:
        loops=f"results/{RUN}/tables/loop_metrics.parquet",
    output:
        in_report("fig5"),
    params:
        settings=figure_settings(budget=RUNS[RUN].trajectories.budget),
        code=code("fig5"),
        caption=caption,
    log:
        "results/logs/fig5.log",
    conda:
        "../../envs/analysis.yaml"
    shell:
        "python scripts/fig5.py --settings {params.settings:q} --loops {input.loops:q} --output {output:q} > {log:q} 2>&1"
