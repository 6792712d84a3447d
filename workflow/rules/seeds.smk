# The run under several seeds: every quantity of the claims with its spread between seeds, and verdicts over seeds.
#
# in:  results/{run}/tables/*.parquet of the selected run and of <run>-seedN for the other seeds of `seeds`
# out: results/{run}/tables/seeds.parquet of the selected run, results/seeds.md; the figure is results/seeds.pdf

from twoscale.config import text_label
from twoscale.workflow import trains


rule compare_seeds:
    input:
        loops=runs.at_seeds("loop_sequences"),
        drift=runs.at_seeds("drift_sequences"),
        quality=runs.at_seeds("exit_quality"),
        exit_loops=runs.at_seeds("exit_loops"),
        latency=runs.at_seeds("exit_latency"),
        checks=runs.at_seeds("check_cost"),
    output:
        table=TABLE.format("seeds"),
        page="results/seeds.md",
    log:
        "results/logs/compare_seeds.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("compare_seeds"),
        config=runs.slice(
            *("run", "seed"),
            seeds=lambda config: [runs[run].seed for run in runs.study("seeds")],
            text=lambda config: text_label(config.data),
            max_loops=lambda config: config.exits.max_loops,
            warmup_iterations=lambda config: config.train.warmup_iterations,
            published=lambda config: not trains(config),
        ),
        tables=table_columns("seeds"),
    shell:
        JOB


rule seeds:
    input:
        "results/seeds.md",
        "results/seeds.pdf",
