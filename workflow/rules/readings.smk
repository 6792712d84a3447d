# The readings study: the chosen model, smaller or shorter as `variants.overrides` says, under several readings.
#
# in:  tables/{loop_metrics,drift,training}.parquet of each run results/readings/*
# out: results/readings.pdf

READINGS = reading_names()


rule readings:
    input:
        loops=expand("results/{run}/tables/loop_metrics.parquet", run=READINGS),
        drift=expand("results/{run}/tables/drift.parquet", run=READINGS),
        training=expand("results/{run}/tables/training.parquet", run=READINGS),
    output:
        report("results/readings.pdf", caption="../report/readings.rst", category="Supplementary figures"),
    log:
        "results/logs/readings.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(
            budget=RUNS[next(iter(READINGS))].trajectories.loops,
            reading=RUNS[RUN].figures.dlr_reference_state,
            readings=READINGS,
        ),
        runs=list(READINGS),
        code=code("readings"),
        caption=readings_caption,
    shell:
        "python scripts/readings.py --config {params.config:q} --runs {params.runs:q} --loops {input.loops:q}"
        " --drift {input.drift:q} --training {input.training:q} --output {output:q} > {log:q} 2>&1"
