# Exit criteria on dense grids of thresholds, against random exits, fixed loops and an oracle (study.py).

from twoscale.config import text_label
from twoscale.figures.catalogue import inputs_from


use rule torch_job as benchmark_pareto with:
    """Job: time per token of the exit criteria of the grid `pareto`"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
        criteria=runs.each_criterion(QUALITY, users_of="pareto"),
    output:
        latency="results/{run}/tables/pareto_latency.parquet",
    log:
        "results/{run}/logs/benchmark_pareto.log",
    benchmark:
        "results/{run}/benchmarks/benchmark_pareto.tsv"
    threads: workflow.cores or 1
    resources:
        **runs.resources.torch_job("exits", minutes=480, cpus=4),
    params:
        **runs.params.measure(
            "twoscale.exits.benchmark.run",
            tables=("exit_latency",),
            config=runs.params.exit_config("pareto"),
        ),


use rule torch_job as measure_exit_regret with:
    """Job: exits of the criteria and of an oracle on frozen trajectories"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
        criteria=runs.each_criterion(QUALITY, users_of="pareto"),
    output:
        exit_regret="results/{run}/tables/pareto_regret.parquet",
        oracle_frontier="results/{run}/tables/oracle_frontier.parquet",
        exit_reliability="results/{run}/tables/exit_reliability.parquet",
    log:
        "results/{run}/logs/measure_exit_regret.log",
    benchmark:
        "results/{run}/benchmarks/measure_exit_regret.tsv"
    resources:
        **runs.resources.torch_job("exits", minutes=120),
    params:
        **runs.params.measure(
            "twoscale.studies.arena.measure.run",
            tables=("exit_regret", "oracle_frontier", "exit_reliability"),
            config=runs.params.exit_config(
                "pareto",
                oracle=lambda config: config.oracle,
                sequences=lambda config: config.sequences("oracle"),
            ),
        ),


use rule table_job as compare_exits with:
    """Job: the criteria against random exits, fixed loops and the oracle, and the page arena.md"""
    input:
        **runs.figures.page_inputs(
            "arena",
            inputs_from(
                "oracle_frontier",
                "exit_reliability",
                exit_quality="pareto_quality",
                exit_loops="pareto_loops",
                exit_cost_matched="pareto_cost_matched",
                exit_regret="pareto_regret",
            ),
        ),
    output:
        arena=TABLE.format("arena"),
        page=SHOWN.format("arena.md"),
    log:
        LOG.format("compare_exits"),
    localrule: True
    params:
        **runs.params.call(
            "twoscale.studies.arena.draw.run",
            tables=("arena",),
            config=runs.params.config_json(
                *("run", "seed"),
                text=lambda config: text_label(config.data),
                draws=lambda config: config.exits.random_draws,
                loops=lambda config: config.exits.max_loops,
                groups=lambda config: ", ".join(config.model.group_labels),
                tokens=lambda config: config.whole_tokens("pareto", "quality_tokens"),
                oracle_tokens=lambda config: config.whole_tokens("oracle"),
            ),
        ),
