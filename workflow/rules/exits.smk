# Exit criteria at the last checkpoint: quality and latency.
#
# in:  the last checkpoint, data/val.bin
# out: tables/exit_{quality,loops,latency,latency_loops}.parquet, tables/check_cost.parquet; on a dense grid of
#      thresholds tables/pareto_{quality,loops,latency,latency_loops}.parquet, tables/uniform_loops.parquet


rule benchmark_exits:
    input:
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
    output:
        quality="results/{run}/tables/exit_quality.parquet",
        loops="results/{run}/tables/exit_loops.parquet",
        latency="results/{run}/tables/exit_latency.parquet",
        latency_loops="results/{run}/tables/exit_latency_loops.parquet",
        check_cost="results/{run}/tables/check_cost.parquet",
    log:
        "results/{run}/logs/benchmark_exits.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_exits.tsv"
    conda:
        "../../envs/torch.yaml"
    # all cores, so that no other job disturbs the timing; torch itself uses one thread
    threads: workflow.cores or 1
    resources:
        # `threads` is the cores of the machine that runs Snakemake; a cluster job requests these
        **runs.torch_job(memory=8000, minutes=240, cpus_per_task=4),
    params:
        **torch_script("benchmark_exits"),
        config=runs.exit_slice(lambda config: config.exits),
        tables=table_columns("exit_quality", "exit_loops", "exit_latency", "exit_latency_loops", "check_cost"),
    shell:
        "{params.command} --config {params.config:q} --threads {threads} {params.files} > {log:q} 2>&1"


use rule benchmark_exits as benchmark_pareto with:
    output:
        quality="results/{run}/tables/pareto_quality.parquet",
        loops="results/{run}/tables/pareto_loops.parquet",
        latency="results/{run}/tables/pareto_latency.parquet",
        latency_loops="results/{run}/tables/pareto_latency_loops.parquet",
        uniform_loops="results/{run}/tables/uniform_loops.parquet",
    log:
        "results/{run}/logs/benchmark_pareto.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_pareto.tsv"
    resources:
        **runs.torch_job(memory=8000, minutes=480, cpus_per_task=4),
    params:
        config=runs.exit_slice(lambda config: config.dense_exits),
        tables=table_columns("exit_quality", "exit_loops", "exit_latency", "exit_latency_loops", "uniform_loops"),
