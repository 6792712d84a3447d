# Kinds of trajectories and path independence, for supplementary figures.
#
# in:  paths/ of every checkpoint; every checkpoint, data/val.bin
# out: tables/{kinds,path_metrics,path_independence}.parquet; results/kinds.pdf, results/path_independence.pdf


KIND_FIGURES = ["results/kinds.pdf", "results/path_independence.pdf"] if RUNS[RUN].model.groups else []


rule measure_path_independence:
    input:
        checkpoint="results/{run}/checkpoints/step_{step}.safetensors",
        val=data_file("val.bin"),
        sidecar=data_file("tokens.json"),
    output:
        "results/{run}/path_independence/step_{step}.parquet",
    log:
        "results/{run}/logs/measure_path_independence_{step}.log",
    benchmark:
        "results/{run}/benchmarks/measure_path_independence_{step}.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
        gpu=gpus,
        gpu_slot=gpus,
    params:
        settings=settings_json(
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
        "{params.launch} scripts/measure_path_independence.py --settings {params.settings:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --sidecar {input.sidecar:q} --output {output:q} > {log:q} 2>&1"


rule aggregate_paths:
    input:
        paths=every_step("results/{run}/paths/step_{step:06d}.parquet"),
        independence=every_step("results/{run}/path_independence/step_{step:06d}.parquet"),
    output:
        kinds="results/{run}/tables/kinds.parquet",
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
        settings=settings_json(run=run_name),
        tables=written("kinds", "path_metrics", "path_independence"),
        code=code("aggregate_paths"),
    shell:
        "python scripts/aggregate_paths.py --settings {params.settings:q}"
        " --paths {input.paths:q} --independence {input.independence:q}"
        " --output-kinds {output.kinds:q} --output-metrics {output.metrics:q}"
        " --output-independence {output.independence:q} > {log:q} 2>&1"


rule kinds:
    input:
        kinds=f"results/{RUN}/tables/kinds.parquet",
        metrics=f"results/{RUN}/tables/path_metrics.parquet",
    output:
        in_supplement("kinds"),
    log:
        "results/logs/kinds.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        settings=figure_settings(budget=RUNS[RUN].trajectories.budget),
        code=code("kinds"),
        caption=kinds_caption,
    shell:
        "python scripts/kinds.py --settings {params.settings:q} --kinds {input.kinds:q} --metrics {input.metrics:q}"
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
        settings=figure_settings(budget=RUNS[RUN].trajectories.budget),
        code=code("path_independence"),
        caption=kinds_caption,
    shell:
        "python scripts/path_independence.py --settings {params.settings:q} --independence {input.independence:q}"
        " --output {output:q} > {log:q} 2>&1"
