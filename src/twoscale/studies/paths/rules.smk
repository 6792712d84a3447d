# Types of the paths of tokens, and path independence (study.py).


use rule table_job as aggregate_paths with:
    """Job: shares and measures of the types of paths"""
    input:
        paths=runs.at_checkpoints("results/{run}/paths/iteration_{iteration}.parquet"),
    output:
        path_types="results/{run}/tables/path_types.parquet",
        path_metrics="results/{run}/tables/path_metrics.parquet",
    log:
        "results/{run}/logs/aggregate_paths.log",
    localrule: True
    params:
        **runs.params.call("twoscale.dynamics.aggregate.count_path_types", tables=("path_types", "path_metrics")),


use rule torch_job as measure_path_independence with:
    """Job: repeated loops from different initial noise, at one checkpoint"""
    input:
        checkpoint=runs.checkpoint_file,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
    output:
        independence="results/{run}/path_independence/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_path_independence_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_path_independence_{iteration}.tsv"
    resources:
        **runs.resources.torch_job("trajectories"),
    params:
        **runs.params.measure(
            "twoscale.studies.paths.measure.run",
            tables=("token_independence",),
            config=runs.params.config_json(
                *("seed", "device", "model", "trajectories", "path_independence"),
                sequences=lambda config: config.sequences("path_independence"),
            ),
        ),


use rule table_job as aggregate_independence with:
    """Job: means of path independence over tokens, at all checkpoints"""
    input:
        independence=runs.at_checkpoints("results/{run}/path_independence/iteration_{iteration}.parquet"),
    output:
        path_independence="results/{run}/tables/path_independence.parquet",
    log:
        "results/{run}/logs/aggregate_independence.log",
    localrule: True
    params:
        **runs.params.call("twoscale.studies.paths.draw.run_independence", tables=("path_independence",)),
