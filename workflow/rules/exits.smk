# Exit criteria at the last checkpoint: quality and latency.
#
# in:  the last checkpoint, data/val.bin; probe.safetensors for the criterion `probe`
# out: exits/{grid}/{criterion}.{quality,loops,controls}.parquet, joined in tables/{grid}_{quality,loops,controls}.parquet;
#      tables/exit_{latency,latency_loops}.parquet, tables/check_cost.parquet
#
# The grid exit has the thresholds of `exits`; studies have further grids. Each criterion has a quality job of its own,
# which first tries a user's criterion in both engines. In the latency job all criteria take turns. Snakemake deletes
# the outputs of a job when it starts, so joins and latency wait for the quality of users' criteria: if one fails, the
# tables of the others are kept. (Not with `ancient`: Snakemake then overlooks that the waiting job has changed, too.)

LOOPS = "results/{run}/exits/{grid}/{criterion}.loops.parquet"
CONTROLS = "results/{run}/exits/{grid}/{criterion}.controls.parquet"


from twoscale.workflow import QUALITY


wildcard_constraints:
    grid="|".join(runs.config.exit_grids),
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
        **kept_script(
            "measure",
            runs.exit_slice(),
            *("exit_quality", "exit_loops", "exit_controls"),
            function="twoscale.exits.jobs.measure_exit_quality",
        ),
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


rule benchmark_exits:
    input:
        runs.model_files,
        criteria=runs.each_criterion(QUALITY, "exit", of_users=True),
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
            "measure",
            runs.exit_slice("exit"),
            *("exit_latency", "exit_latency_loops", "check_cost"),
            function="twoscale.exits.jobs.benchmark_exits",
        ),
    shell:
        JOB
