# Trajectories of held-out tokens through the loops, at every checkpoint.
#
# in:  checkpoints, data/val.bin
# out: {trajectories,paths,drift}/iteration_*.parquet; states.safetensors of the last checkpoint;
#      tables/{state_paths,loop_metrics,drift,loop_sequences,drift_sequences}.parquet


rule extract_trajectories:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.checkpoint_file,
    output:
        trajectories="results/{run}/trajectories/iteration_{iteration}.parquet",
        paths="results/{run}/paths/iteration_{iteration}.parquet",
        drift="results/{run}/drift/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/extract_trajectories_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/extract_trajectories_{iteration}.tsv"
    group:
        "analyses_{run}_{iteration}"
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("trajectories", memory=8000, minutes=60),
    params:
        **kept_script(
            "extract_trajectories",
            runs.slice("seed", "device", "model", "trajectories", "path_types", "trajectory_sequences"),
            "trajectories",
            "token_paths",
            "token_drift",
        ),
    shell:
        JOB


rule extract_states:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        tokenizer=runs.tokenizer_file,
    output:
        states="results/{run}/states.safetensors",
    log:
        "results/{run}/logs/extract_states.log",
    benchmark:
        "results/{run}/benchmarks/extract_states.tsv"
    group:
        runs.last_group
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("trajectories", memory=8000, minutes=30),
    params:
        **kept_script(
            "extract_states",
            runs.slice(
                *("seed", "device", "model", "trajectories", "trajectory_sequences"),
                tokenizer=lambda config: config.tokenizer.name,
            ),
        ),
    shell:
        JOB


rule project_states:
    input:
        states="results/{run}/states.safetensors",
    output:
        state_paths="results/{run}/tables/state_paths.parquet",
    log:
        "results/{run}/logs/project_states.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("project_states"),
        config=runs.slice("run"),
        tables=table_columns("state_paths"),
    shell:
        JOB


rule aggregate_metrics:
    input:
        trajectories=runs.at_checkpoints("results/{run}/trajectories/iteration_{iteration}.parquet"),
        token_drift=runs.at_checkpoints("results/{run}/drift/iteration_{iteration}.parquet"),
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
        **script("aggregate_metrics"),
        config=runs.slice("run"),
        tables=table_columns("loop_metrics", "drift", "loop_sequences", "drift_sequences"),
    shell:
        JOB
