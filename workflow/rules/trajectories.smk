# Trajectories of held-out tokens through the loops, and their measures: Fig. 1, 2, 3 and 5, and loops.html.

from twoscale.config import plain
from twoscale.workflow.params import criterion_files


use rule torch_job as extract_trajectories with:
    """Job: measures of every loop step of held-out tokens, at one checkpoint"""
    input:
        checkpoint=runs.checkpoint_file,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
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
    resources:
        **runs.resources.torch_job("trajectories"),
    params:
        **runs.params.measure(
            "twoscale.dynamics.trajectories.run",
            tables=("trajectories", "token_paths", "token_drift"),
            config=runs.params.config_json(
                "seed", "device", "model", "trajectories", "path_types", "trajectory_sequences"
            ),
        ),


use rule table_job as aggregate_metrics with:
    """Job: means of the measures over tokens and over sequences, at all checkpoints"""
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
    localrule: True
    params:
        **runs.params.call(
            "twoscale.dynamics.aggregate.metrics",
            tables=("loop_metrics", "drift", "loop_sequences", "drift_sequences"),
        ),


use rule torch_job as extract_states with:
    """Job: states of held-out tokens after every loop step, at the last checkpoint"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
        tokenizer=runs.data.tokenizer_file,
    output:
        states="results/{run}/states.safetensors",
    log:
        "results/{run}/logs/extract_states.log",
    benchmark:
        "results/{run}/benchmarks/extract_states.tsv"
    group:
        runs.resources.last_group
    resources:
        **runs.resources.torch_job("trajectories", minutes=30),
    params:
        **runs.params.measure(
            "twoscale.dynamics.state_paths.extract_states",
            tables=(),
            config=runs.params.config_json(
                *("seed", "device", "model", "trajectories", "trajectory_sequences"),
                tokenizer=lambda config: config.tokenizer.name,
            ),
        ),


use rule table_job as project_states with:
    """Job: the paths of states in the plane of their two principal components"""
    input:
        states="results/{run}/states.safetensors",
    output:
        state_paths="results/{run}/tables/state_paths.parquet",
    log:
        "results/{run}/logs/project_states.log",
    localrule: True
    params:
        **runs.params.call("twoscale.dynamics.state_paths.project_states", tables=("state_paths",)),


use rule torch_job as measure_loop_tokens with:
    """Job: predictions and exits of the first tokens of the same sequence at every loop step, at the last checkpoint"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
        tokenizer=runs.data.tokenizer_file,
    output:
        loop_tokens="results/{run}/tables/loop_tokens.parquet",
        loop_exits="results/{run}/tables/loop_exits.parquet",
    log:
        "results/{run}/logs/measure_loop_tokens.log",
    benchmark:
        "results/{run}/benchmarks/measure_loop_tokens.tsv"
    group:
        runs.resources.last_group
    resources:
        **runs.resources.torch_job("trajectories", minutes=30),
    params:
        **runs.params.measure(
            "twoscale.exits.loop_tokens.run",
            tables=("loop_tokens", "loop_exits"),
            config=runs.params.config_json(
                *("run", "seed", "device", "model", "trajectories", "trajectory_sequences"),
                tokenizer=lambda config: config.tokenizer.name,
                tokens=lambda config: config.figures.loop_tokens,
                criteria=lambda config: plain(config.exits)["criteria"],
                criterion_files=lambda config: criterion_files(config.exits.criteria),
                readout=lambda config: config.exits.readout,
                max_loops=lambda config: config.exits.max_loops,
            ),
        ),
