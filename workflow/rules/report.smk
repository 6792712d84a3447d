# The verdicts, and pages that only the report shows: tables to sort and search, and the runtime of each rule.
#
# in:  results/{run}/tables/*.parquet, results/{run}/benchmarks/*.tsv
# out: results/{run}/tables/claims.parquet, results/claims.md, results/report/*.html

from twoscale.config import text_label
from twoscale.json import canonical_json
from twoscale.workflow import trains

REPORT_TABLES = ["claims", "loop_metrics", "drift", "exit_quality", "exit_latency", "check_cost"]


rule judge_claims:
    input:
        loops=TABLE.format("loop_sequences"),
        drift=TABLE.format("drift_sequences"),
        quality=TABLE.format("exit_quality"),
        exit_loops=TABLE.format("exit_loops"),
        latency=TABLE.format("exit_latency"),
        check_cost=TABLE.format("check_cost"),
    output:
        table=TABLE.format("claims"),
        page=report("results/claims.md", caption="../report/claims.rst", category="Claims"),
    log:
        "results/logs/judge_claims.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("judge_claims"),
        config=runs.slice(
            *("run", "seed"),
            text=lambda config: text_label(config.data),
            max_loops=lambda config: config.exits.max_loops,
            warmup_iterations=lambda config: config.train.warmup_iterations,
            published=lambda config: not trains(config),
        ),
        tables=table_columns("claims"),
        caption=runs.caption(),
    shell:
        JOB


rule write_table_page:
    input:
        table=TABLE.format("{table}"),
    output:
        page=report(
            "results/report/{table}.html",
            caption="../report/table_page.rst",
            category=lambda wildcards: "Claims" if wildcards.table == "claims" else "Tables",
            labels={"table": "{table}"},
        ),
    log:
        "results/logs/write_table_page_{table}.log",
    wildcard_constraints:
        table="|".join(REPORT_TABLES),
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("write_table_page"),
        config=lambda wildcards: canonical_json({"run": runs.selected, "table": wildcards.table}),
        caption=runs.caption(),
    shell:
        JOB


# The benchmark files are no inputs, because no rule declares them as outputs. They exist once the figures do.
rule write_runtimes:
    input:
        runs.results,
    output:
        page=report("results/report/runtimes.html", caption="../report/runtimes.rst", category="Runtime"),
    log:
        "results/logs/write_runtimes.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("write_runtimes"),
        config=runs.slice("run"),
        benchmarks=lambda wildcards, output: Path(output.page).parents[1] / runs.selected / "benchmarks",
        caption=runs.caption(),
    shell:
        "{params.command} --config {params.config:q} --benchmarks {params.benchmarks:q} {params.files} > {log:q} 2>&1"


rule report_pages:
    input:
        runs.results,
        expand("results/report/{table}.html", table=REPORT_TABLES if runs.claims else []),
        "results/report/runtimes.html",
        runs.explore_page if runs.claims else [],
