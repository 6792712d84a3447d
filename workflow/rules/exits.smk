# Exit criteria at the last checkpoint, their quality and latency: Fig. 4.
#
# Each criterion has a quality job, which first tries a user's criterion in both engines; in the latency job all take
# turns. Snakemake deletes the outputs of a job when it starts, so joins and latency wait for the quality of users'
# criteria: if one fails, the tables of the others are kept. (Not with `ancient`: Snakemake then overlooks that the
# waiting job has changed, too.)


QUALITY = "results/{run}/exits/{grid}/{criterion}.quality.parquet"


use rule torch_job as measure_exit_quality with:
    """Job: quality and loops of one exit criterion at every threshold, and of random exits of the same cost"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
    output:
        quality=QUALITY,
        loops="results/{run}/exits/{grid}/{criterion}.loops.parquet",
        cost_matched="results/{run}/exits/{grid}/{criterion}.cost_matched.parquet",
    log:
        "results/{run}/logs/measure_exit_quality.{grid}.{criterion}.log",
    benchmark:
        "results/{run}/benchmarks/measure_exit_quality.{grid}.{criterion}.tsv"
    threads: runs.resources.exit_threads(workflow.cores)
    resources:
        **runs.resources.torch_job("exits", minutes=120, cpus=4),
    params:
        **runs.params.measure(
            "twoscale.exits.benchmark.measure_exit_quality",
            tables=("exit_quality", "exit_loops", "exit_cost_matched"),
            config=runs.params.exit_config(),
        ),


use rule table_job as join_exit_quality with:
    """Job: join the quality of all exit criteria of a grid of thresholds"""
    input:
        quality_files=runs.each_criterion(QUALITY),
        loops_files=runs.each_criterion("results/{run}/exits/{grid}/{criterion}.loops.parquet"),
        cost_matched_files=runs.each_criterion("results/{run}/exits/{grid}/{criterion}.cost_matched.parquet"),
    output:
        quality="results/{run}/tables/{grid}_quality.parquet",
        loops="results/{run}/tables/{grid}_loops.parquet",
        cost_matched="results/{run}/tables/{grid}_cost_matched.parquet",
    log:
        "results/{run}/logs/join_exit_quality.{grid}.log",
    localrule: True
    params:
        **runs.params.call(
            "twoscale.dynamics.aggregate.join_exit_quality",
            tables=("exit_quality", "exit_loops", "exit_cost_matched"),
        ),


# Takes all cores, so that no other job disturbs the measured times; torch itself uses one.
use rule torch_job as benchmark_exits with:
    """Job: time per token of all exit criteria, and the costs of loop steps and decisions"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
        criteria=runs.each_criterion(QUALITY, users_of="exit"),  # which may fail
    output:
        latency="results/{run}/tables/exit_latency.parquet",
        costs="results/{run}/tables/exit_costs.parquet",
    log:
        "results/{run}/logs/benchmark_exits.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_exits.tsv"
    threads: workflow.cores or 1
    resources:
        **runs.resources.torch_job("exits", minutes=240, cpus=4),
    params:
        **runs.params.measure(
            "twoscale.exits.benchmark.run",
            tables=("exit_latency", "exit_costs"),
            config=runs.params.exit_config("exit"),
        ),
