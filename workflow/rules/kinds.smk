# Kinds of trajectories and path independence, for supplementary figures.
#
# in:  paths/ of every checkpoint; every checkpoint, data/val.bin
# out: tables/{path_types,path_metrics,path_independence}.parquet; results/path_types.pdf, results/path_independence.pdf


PATH_TYPE_FIGURES = ["results/path_types.pdf", "results/path_independence.pdf"] if RUNS[RUN].model.groups else []


rule measure_path_independence:
    input:
        checkpoint="results/{run}/checkpoints/iteration_{iteration}.safetensors",
        val=data_file("val.bin"),
        metadata=data_file("tokens.json"),
    output:
        "results/{run}/path_independence/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_path_independence_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_path_independence_{iteration}.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
        gpu=gpus,
        gpu_slot=gpus,
    params:
        config=config_json(
            seed=seed,
            device=device,
            model=section("model"),
            trajectories=section("trajectories"),
            path_independence=section("path_independence"),
        ),
        tables=written("token_independence"),
        launch=launch_alone,
        code=code("measure_path_independence"),
    shell:
        "{params.launch} scripts/measure_path_independence.py --config {params.config:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --metadata {input.metadata:q} --output {output:q} > {log:q} 2>&1"


rule aggregate_paths:
    input:
        paths=every_checkpoint("results/{run}/paths/iteration_{iteration:06d}.parquet"),
        independence=every_checkpoint("results/{run}/path_independence/iteration_{iteration:06d}.parquet"),
    output:
        path_types="results/{run}/tables/path_types.parquet",
        metrics="results/{run}/tables/path_metrics.parquet",
        independence="results/{run}/tables/path_independence.parquet",
    log:
        "results/{run}/logs/aggregate_paths.log",
    benchmark:
        "results/{run}/benchmarks/aggregate_paths.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        config=config_json(run=run_name),
        tables=written("path_types", "path_metrics", "path_independence"),
        code=code("aggregate_paths"),
    shell:
        "python scripts/aggregate_paths.py --config {params.config:q}"
        " --paths {input.paths:q} --independence {input.independence:q}"
        " --output-path_types {output.path_types:q} --output-metrics {output.metrics:q}"
        " --output-independence {output.independence:q} > {log:q} 2>&1"


rule path_types:
    input:
        path_types=f"results/{RUN}/tables/path_types.parquet",
        metrics=f"results/{RUN}/tables/path_metrics.parquet",
    output:
        in_supplement("path_types"),
    log:
        "results/logs/path_types.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(budget=RUNS[RUN].trajectories.loops),
        code=code("path_types"),
        caption=path_types_caption,
    shell:
        "python scripts/path_types.py --config {params.config:q} --path_types {input.path_types:q} --metrics {input.metrics:q}"
        " --output {output:q} > {log:q} 2>&1"


rule path_independence:
    input:
        independence=f"results/{RUN}/tables/path_independence.parquet",
    output:
        in_supplement("path_independence"),
    log:
        "results/logs/path_independence.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(budget=RUNS[RUN].trajectories.loops),
        code=code("path_independence"),
        caption=path_types_caption,
    shell:
        "python scripts/path_independence.py --config {params.config:q} --independence {input.independence:q}"
        " --output {output:q} > {log:q} 2>&1"
