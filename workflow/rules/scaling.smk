# Quality against loops: fixed loop counts at every checkpoint, and all exit rules on a dense grid at the last one.
#
# in:  checkpoints, data/val.bin
# out: scaling/step_*.parquet, tables/scaling.parquet, results/scaling.pdf;
#      tables/pareto_{quality,latency}.parquet, tables/uniform_loops.parquet, results/pareto.pdf


SCALING_FIGURES = ["results/scaling.pdf", "results/pareto.pdf"] if RUNS[RUN].model.groups else []


rule scaling_quality:
    input:
        checkpoint="results/{run}/checkpoints/iteration_{iteration}.safetensors",
        val=data_file("val.bin"),
        metadata=data_file("tokens.json"),
    output:
        "results/{run}/scaling/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/scaling_quality_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/scaling_quality_{iteration}.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
        gpu=gpus,
        gpu_slot=gpus,
    params:
        config=config_json(seed=seed, device=device, model=section("model"), scaling=section("scaling")),
        tables=written("scaling_quality"),
        launch=launch_alone,
        code=code("scaling_quality"),
    shell:
        "{params.launch} scripts/scaling_quality.py --config {params.config:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --metadata {input.metadata:q} --quality {output:q} > {log:q} 2>&1"


rule aggregate_scaling:
    input:
        quality=every_checkpoint("results/{run}/scaling/iteration_{iteration:06d}.parquet"),
    output:
        "results/{run}/tables/scaling.parquet",
    log:
        "results/{run}/logs/aggregate_scaling.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=config_json(run=run_name, seed=seed),
        tables=written("scaling"),
        code=code("aggregate_scaling"),
    shell:
        "python scripts/aggregate_scaling.py --config {params.config:q} --quality {input.quality:q}"
        " --output {output:q} > {log:q} 2>&1"


rule benchmark_pareto:
    input:
        checkpoint=last_checkpoint,
        val=data_file("val.bin"),
        metadata=data_file("tokens.json"),
    output:
        quality="results/{run}/tables/pareto_quality.parquet",
        latency="results/{run}/tables/pareto_latency.parquet",
        reference="results/{run}/tables/uniform_loops.parquet",
    log:
        "results/{run}/logs/benchmark_pareto.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_pareto.tsv"
    conda:
        "../../envs/torch.yaml"
    # all cores, so that nothing else runs beside the timing; torch itself times on one thread
    threads: workflow.cores or 1
    resources:
        mem_mb=growing(8000),
        runtime=growing(480),
        gpu=gpus,
        gpu_slot=gpus,
    params:
        config=config_json(
            run=run_name,
            seed=seed,
            device=device,
            model=section("model"),
            exits=dense_exits,
            criterion_files=dense_criterion_files,
        ),
        tables=written("exit_quality", "exit_latency", "uniform_loops"),
        launch=launch_alone,
        code=code("benchmark_pareto"),
    shell:
        "{params.launch} scripts/benchmark_pareto.py --config {params.config:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --metadata {input.metadata:q} --threads {threads} --quality {output.quality:q}"
        " --latency {output.latency:q} --reference {output.reference:q} > {log:q} 2>&1"


rule scaling:
    input:
        scaling=f"results/{RUN}/tables/scaling.parquet",
    output:
        in_supplement("scaling"),
    log:
        "results/logs/scaling.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(mean_loops=RUNS[RUN].model.mean_loops),
        code=code("scaling"),
        caption=scaling_caption,
    shell:
        "python scripts/scaling.py --config {params.config:q} --scaling {input.scaling:q} --output {output:q}"
        " > {log:q} 2>&1"


rule pareto:
    input:
        latency=f"results/{RUN}/tables/pareto_latency.parquet",
        quality=f"results/{RUN}/tables/pareto_quality.parquet",
        reference=f"results/{RUN}/tables/uniform_loops.parquet",
    output:
        in_supplement("pareto"),
    log:
        "results/logs/pareto.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(budget=RUNS[RUN].exits.max_loops),
        code=code("pareto"),
        caption=pareto_caption,
    shell:
        "python scripts/pareto.py --config {params.config:q} --latency {input.latency:q} --quality {input.quality:q}"
        " --reference {input.reference:q} --output {output:q} > {log:q} 2>&1"
