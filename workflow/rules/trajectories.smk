# Statistics over the tokens of all checkpoints.
#
# in:  {trajectories,drift}/iteration_*.parquet
# out: tables/{loop_metrics,drift,loop_sequences,drift_sequences}.parquet


rule aggregate_metrics:
    """Job: statistics of step norms, angles and drift over the tokens of every checkpoint"""
    input:
        trajectories=runs.paths.at_checkpoints("results/{run}/trajectories/iteration_{iteration}.parquet"),
        token_drift=runs.paths.at_checkpoints("results/{run}/drift/iteration_{iteration}.parquet"),
    output:
        loop_metrics="results/{run}/tables/loop_metrics.parquet",
        drift="results/{run}/tables/drift.parquet",
        loop_sequences="results/{run}/tables/loop_sequences.parquet",
        drift_sequences="results/{run}/tables/drift_sequences.parquet",
    log:
        "results/{run}/logs/aggregate_metrics.log",
    benchmark:
        "results/{run}/benchmarks/aggregate_metrics.tsv"
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=growing(4000),
        runtime=30,
    params:
        **runs.params.function("twoscale.dynamics.aggregate.metrics"),
        config=runs.params.slice("run"),
        tables=table_columns("loop_metrics", "drift", "loop_sequences", "drift_sequences"),
    shell:
        JOB
