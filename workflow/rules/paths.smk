# Whole paths of tokens: their types, and their independence of the initial state.
#
# in:  paths/ of every checkpoint; checkpoints, data/val.bin
# out: path_independence/iteration_*.parquet, tables/{path_types,path_metrics,path_independence}.parquet


rule measure_path_independence:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.checkpoint_file,
    output:
        independence="results/{run}/path_independence/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_path_independence_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_path_independence_{iteration}.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("trajectories", memory=8000, minutes=60),
    params:
        **kept_script(
            "measure_path_independence",
            runs.slice("seed", "device", "model", "trajectories", "path_independence", "independence_sequences"),
            "token_independence",
        ),
    shell:
        JOB


rule aggregate_paths:
    input:
        paths=runs.at_checkpoints("results/{run}/paths/iteration_{iteration}.parquet"),
    output:
        path_types="results/{run}/tables/path_types.parquet",
        path_metrics="results/{run}/tables/path_metrics.parquet",
    log:
        "results/{run}/logs/aggregate_paths.log",
    benchmark:
        "results/{run}/benchmarks/aggregate_paths.tsv"
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        **script("aggregate_paths"),
        config=runs.slice("run"),
        tables=table_columns("path_types", "path_metrics"),
    shell:
        JOB


rule aggregate_independence:
    input:
        independence=runs.at_checkpoints("results/{run}/path_independence/iteration_{iteration}.parquet"),
    output:
        path_independence="results/{run}/tables/path_independence.parquet",
    log:
        "results/{run}/logs/aggregate_independence.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        **script("aggregate_independence"),
        config=runs.slice("run"),
        tables=table_columns("path_independence"),
    shell:
        JOB
