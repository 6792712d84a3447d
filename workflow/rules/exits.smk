# Exit rules on the last checkpoint: quality and latency.
#
# in:  the last checkpoint, data/val.bin
# out: tables/exit_quality.parquet, tables/exit_latency.parquet, tables/check_cost.parquet


rule benchmark_exits:
    input:
        checkpoint=last_checkpoint,
        val=data_file("val.bin"),
        metadata=data_file("tokens.json"),
    output:
        quality="results/{run}/tables/exit_quality.parquet",
        latency="results/{run}/tables/exit_latency.parquet",
        checks="results/{run}/tables/check_cost.parquet",
    log:
        "results/{run}/logs/benchmark_exits.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_exits.tsv"
    conda:
        "../../envs/torch.yaml"
    # all cores, so that nothing else runs beside the timing; torch itself times on one thread
    threads: workflow.cores or 1
    resources:
        mem_mb=growing(8000),
        runtime=growing(240),
        # `threads` counts the cores of the machine that runs Snakemake; a cluster job asks for these
        cpus_per_task=4,
        gpu=gpus,
        gpu_slot=gpus,
    params:
        config=config_json(
            run=run_name,
            seed=seed,
            device=device,
            model=section("model"),
            exits=section("exits"),
            criterion_files=exit_criterion_files,
        ),
        tables=written("exit_quality", "exit_latency", "check_cost"),
        launch=launch_alone,
        code=code("benchmark_exits"),
    shell:
        "{params.launch} scripts/benchmark_exits.py --config {params.config:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --metadata {input.metadata:q} --threads {threads}"
        " --quality {output.quality:q} --latency {output.latency:q} --checks {output.checks:q} > {log:q} 2>&1"
