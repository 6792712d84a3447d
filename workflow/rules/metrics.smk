# From per-token tables to tidy ones.
#
# in:  trajectories/, drift/ and training/ of every checkpoint
# out: tables/{loop_metrics,drift,loop_sequences,drift_sequences,training}.parquet


rule aggregate_metrics:
    input:
        trajectories=every_checkpoint("results/{run}/trajectories/iteration_{iteration:06d}.parquet"),
        drift=every_checkpoint("results/{run}/drift/iteration_{iteration:06d}.parquet"),
        training=every_checkpoint("results/{run}/training/iteration_{iteration:06d}.parquet", untrained=False),
    output:
        loops="results/{run}/tables/loop_metrics.parquet",
        drift="results/{run}/tables/drift.parquet",
        loop_sequences="results/{run}/tables/loop_sequences.parquet",
        drift_sequences="results/{run}/tables/drift_sequences.parquet",
        training="results/{run}/tables/training.parquet",
    log:
        "results/{run}/logs/aggregate_metrics.log",
    benchmark:
        "results/{run}/benchmarks/aggregate_metrics.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=growing(4000),
        runtime=30,
    params:
        config=config_json(run=run_name),
        tables=written("loop_metrics", "drift", "loop_sequences", "drift_sequences", "training"),
        code=code("aggregate_metrics"),
    shell:
        "python scripts/aggregate_metrics.py --config {params.config:q}"
        " --trajectories {input.trajectories:q} --drift {input.drift:q} --training {input.training:q}"
        " --output-loops {output.loops:q} --output-drift {output.drift:q}"
        " --output-loop-sequences {output.loop_sequences:q} --output-drift-sequences {output.drift_sequences:q}"
        " --output-training {output.training:q} > {log:q} 2>&1"
