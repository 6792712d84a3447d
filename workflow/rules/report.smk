# Pages that only the report shows: tables to sort and search, and what each rule took.
#
# in:  results/{run}/tables/*.parquet, results/{run}/benchmarks/*.tsv
# out: results/report/*.html


REPORT_TABLES = ["claims", "loop_metrics", "drift", "exit_quality", "exit_latency", "check_cost"]


rule table_page:
    input:
        f"results/{RUN}/tables/{{table}}.parquet",
    output:
        report(
            "results/report/{table}.html",
            caption="../report/table_page.rst",
            category=page_category,
            labels={"table": "{table}"},
        ),
    log:
        "results/logs/table_page_{table}.log",
    wildcard_constraints:
        table="|".join(REPORT_TABLES),
    conda:
        "../../envs/analysis.yaml"
    params:
        config=table_page_config,
        code=code("table_page"),
        caption=caption,
    shell:
        "python scripts/table_page.py --config {params.config:q} --input {input:q} --output {output:q} > {log:q} 2>&1"


# The benchmark files are no inputs, since no rule declares them as outputs: they lie there once the figures do.
rule runtimes:
    input:
        FIGURES,
        CLAIMS,
    output:
        report("results/report/runtimes.html", caption="../report/runtimes.rst", category="Runtime"),
    log:
        "results/logs/runtimes.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(),
        benchmarks=f"results/{RUN}/benchmarks",
        code=code("runtimes"),
        caption=caption,
    shell:
        "python scripts/runtimes.py --config {params.config:q} --benchmarks {params.benchmarks:q} --output {output:q}"
        " > {log:q} 2>&1"


rule report_pages:
    input:
        FIGURES,
        CLAIMS,
        expand("results/report/{table}.html", table=REPORT_TABLES if CLAIMS else []),
        "results/report/runtimes.html",
