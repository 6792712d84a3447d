# The figures of the paper, for the run chosen by `run`: rule, script, caption and module share a name.
#
# in:  results/{run}/tables/*.parquet; for Fig. 1 results/{run}/states.safetensors
# out: results/fig*.pdf


FIGURES = drawable_figures()


rule fig1:
    input:
        states=f"results/{RUN}/states.safetensors",
    output:
        in_report("fig1"),
    log:
        "results/logs/fig1.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(tokens=RUNS[RUN].figures.fig1_tokens),
        code=code("fig1"),
        caption=caption,
    shell:
        "python scripts/fig1.py --config {params.config:q} --states {input.states:q} --output {output:q} > {log:q} 2>&1"


rule fig2:
    input:
        drift=f"results/{RUN}/tables/drift.parquet",
    output:
        in_report("fig2"),
    log:
        "results/logs/fig2.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(budget=RUNS[RUN].trajectories.loops, reading=RUNS[RUN].figures.dlr_reference_state),
        code=code("fig2"),
        caption=caption,
    shell:
        "python scripts/fig2.py --config {params.config:q} --drift {input.drift:q} --output {output:q} > {log:q} 2>&1"


rule fig3:
    input:
        loops=f"results/{RUN}/tables/loop_metrics.parquet",
    output:
        in_report("fig3"),
    log:
        "results/logs/fig3.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(budget=RUNS[RUN].trajectories.loops),
        code=code("fig3"),
        caption=caption,
    shell:
        "python scripts/fig3.py --config {params.config:q} --loops {input.loops:q} --output {output:q} > {log:q} 2>&1"


rule fig4:
    input:
        latency=f"results/{RUN}/tables/exit_latency.parquet",
        quality=f"results/{RUN}/tables/exit_quality.parquet",
    output:
        in_report("fig4"),
    log:
        "results/logs/fig4.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(budget=RUNS[RUN].exits.max_loops),
        code=code("fig4"),
        caption=caption,
    shell:
        "python scripts/fig4.py --config {params.config:q} --latency {input.latency:q} --quality {input.quality:q}"
        " --output {output:q} > {log:q} 2>&1"


rule fig5:
    input:
        loops=f"results/{RUN}/tables/loop_metrics.parquet",
    output:
        in_report("fig5"),
    log:
        "results/logs/fig5.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(budget=RUNS[RUN].trajectories.loops),
        code=code("fig5"),
        caption=caption,
    shell:
        "python scripts/fig5.py --config {params.config:q} --loops {input.loops:q} --output {output:q} > {log:q} 2>&1"
