# A verdict on each claim of the paper, for the run chosen by `run`.
#
# in:  results/{run}/tables/*.parquet
# out: results/{run}/tables/claims.parquet, results/claims.md


CLAIMS = judged_claims()


rule claims:
    input:
        loops=f"results/{RUN}/tables/loop_sequences.parquet",
        drift=f"results/{RUN}/tables/drift_sequences.parquet",
        quality=f"results/{RUN}/tables/exit_quality.parquet",
        latency=f"results/{RUN}/tables/exit_latency.parquet",
        checks=f"results/{RUN}/tables/check_cost.parquet",
    output:
        table=f"results/{RUN}/tables/claims.parquet",
        page=report("results/claims.md", caption="../report/claims.rst", category="Claims"),
    log:
        "results/logs/claims.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(seed=RUNS[RUN].seed, exit_budget=RUNS[RUN].exits.max_loops),
        tables=written("claims"),
        code=code("claims"),
        caption=caption,
    shell:
        "python scripts/claims.py --config {params.config:q} --loops {input.loops:q} --drift {input.drift:q}"
        " --quality {input.quality:q} --latency {input.latency:q} --checks {input.checks:q}"
        " --table {output.table:q} --page {output.page:q} > {log:q} 2>&1"
