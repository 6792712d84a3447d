# Exit criteria at the last checkpoint: quality and latency.
#
# in:  the last checkpoint, data/val.bin; probe.safetensors for the criterion `probe`
# out: exits/{grid}/{criterion}.{quality,loops,controls}.parquet, joined in tables/{grid}_{quality,loops,controls}.parquet;
#      tables/{grid}_{latency,latency_loops}.parquet; tables/check_cost.parquet (grid exit),
#      tables/uniform_loops.parquet (grid pareto); exits/throughput/{criterion}.txt for users' criteria,
#      tables/throughput.parquet, tables/throughput_loops.parquet
#
# The grid exit has the thresholds of `exits`, the grid pareto dense ones. Each criterion has a quality job of its own,
# which first tries a user's criterion in both engines. In the latency job all criteria take turns. Snakemake deletes
# the outputs of a job when it starts, so joins and latency wait for the quality of users' criteria: if one fails, the
# tables of the others are kept. (Not with `ancient`: Snakemake then overlooks that the waiting job has changed, too.)
# The throughput has no quality jobs, so a job of its own tries each user's criterion.

QUALITY = "results/{run}/exits/{grid}/{criterion}.quality.parquet"
LOOPS = "results/{run}/exits/{grid}/{criterion}.loops.parquet"
CONTROLS = "results/{run}/exits/{grid}/{criterion}.controls.parquet"
TRIED = "results/{run}/exits/throughput/{criterion}.txt"


wildcard_constraints:
    grid="exit|pareto",
    criterion=runs.criterion_pattern,


rule measure_exit_quality:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        probe=runs.probe_file(),
    output:
        quality=QUALITY,
        loops=LOOPS,
        controls=CONTROLS,
    log:
        "results/{run}/logs/measure_exit_quality.{grid}.{criterion}.log",
    benchmark:
        "results/{run}/benchmarks/measure_exit_quality.{grid}.{criterion}.tsv"
    conda:
        "../../envs/torch.yaml"
    threads: runs.exit_threads(workflow.cores)
    resources:
        # `threads` is limited by the cores of the machine that runs Snakemake; a cluster job requests these
        **runs.torch_job("exits", memory=8000, minutes=120, cpus_per_task=4),
    params:
        **kept_script("measure_exit_quality", runs.exit_slice(), "exit_quality", "exit_loops", "exit_controls"),
    shell:
        "{params.command} --config {params.config:q} --threads {threads} {params.files} > {log:q} 2>&1"


rule join_exit_quality:
    input:
        quality_files=runs.each_criterion(QUALITY),
        loops_files=runs.each_criterion(LOOPS),
        controls_files=runs.each_criterion(CONTROLS),
    output:
        quality="results/{run}/tables/{grid}_quality.parquet",
        loops="results/{run}/tables/{grid}_loops.parquet",
        controls="results/{run}/tables/{grid}_controls.parquet",
    log:
        "results/{run}/logs/join_exit_quality.{grid}.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("join_exit_quality"),
        config=runs.slice("run"),
        tables=table_columns("exit_quality", "exit_loops", "exit_controls"),
    shell:
        JOB


rule measure_uniform_loops:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
    output:
        uniform_loops="results/{run}/tables/uniform_loops.parquet",
    log:
        "results/{run}/logs/measure_uniform_loops.log",
    benchmark:
        "results/{run}/benchmarks/measure_uniform_loops.tsv"
    conda:
        "../../envs/torch.yaml"
    threads: runs.exit_threads(workflow.cores, "pareto")
    resources:
        **runs.torch_job("exits", memory=8000, minutes=120, cpus_per_task=4),
    params:
        **kept_script("measure_uniform_loops", runs.exit_slice("pareto", "fixed"), "uniform_loops"),
    shell:
        "{params.command} --config {params.config:q} --threads {threads} {params.files} > {log:q} 2>&1"


rule benchmark_exits:
    input:
        runs.each_criterion(QUALITY, "exit", of_users=True),
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        probe=runs.probe_file("exit"),
    output:
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
        **runs.torch_job("exits", memory=8000, minutes=240, cpus_per_task=4),
    params:
        **kept_script(
            "benchmark_exits",
            runs.exit_slice("exit"),
            "exit_latency",
            "exit_latency_loops",
            "check_cost",
        ),
    shell:
        JOB


use rule benchmark_exits as benchmark_pareto with:
    input:
        runs.each_criterion(QUALITY, "pareto", of_users=True),
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        probe=runs.probe_file("pareto"),
    output:
        latency="results/{run}/tables/pareto_latency.parquet",
        latency_loops="results/{run}/tables/pareto_latency_loops.parquet",
    log:
        "results/{run}/logs/benchmark_pareto.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_pareto.tsv"
    resources:
        **runs.torch_job("exits", memory=8000, minutes=480, cpus_per_task=4),
    params:
        **kept_script("benchmark_exits", runs.exit_slice("pareto"), "exit_latency", "exit_latency_loops"),


rule try_criterion:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
    output:
        tried=TRIED,
    log:
        "results/{run}/logs/try_criterion.{criterion}.log",
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("exits", memory=8000, minutes=30),
    params:
        **torch_script("try_criterion"),
        config=runs.exit_slice("throughput"),
    shell:
        JOB


rule benchmark_throughput:
    input:
        runs.each_criterion(TRIED, "throughput", of_users=True),
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        probe=runs.probe_file("throughput"),
    output:
        throughput="results/{run}/tables/throughput.parquet",
        throughput_loops="results/{run}/tables/throughput_loops.parquet",
    log:
        "results/{run}/logs/benchmark_throughput.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_throughput.tsv"
    conda:
        "../../envs/torch.yaml"
    threads: workflow.cores or 1
    resources:
        **runs.torch_job("exits", memory=8000, minutes=240, cpus_per_task=4),
    params:
        **kept_script(
            "benchmark_throughput",
            runs.exit_slice("throughput", sections=["throughput", "throughput_tokens"]),
            "throughput",
            "throughput_loops",
        ),
    shell:
        JOB
