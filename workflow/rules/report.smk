# Tables to filter, and all pages of the report; twoscale.workflow.core has the rows of the others.
#
# in:  results/{run}/tables/*.parquet
# out: results/report/*.html

from twoscale.base import canonical_json

REPORT_TABLES = ["claims", "loop_metrics", "drift", "exit_quality", "exit_latency"]


rule write_table_page:
    """Job: a table as a page of the report, with filters"""
    input:
        table=TABLE.format("{table}"),
    output:
        page=report(
            "results/report/{table}.html",
            caption="../report/table_page.rst",
            category=lambda wildcards: "Claims" if wildcards.table == "claims" else "Tables",
            labels=lambda wildcards: (
                {"page": "All findings as a table"} if wildcards.table == "claims" else {"table": wildcards.table}
            ),
        ),
    log:
        "results/logs/write_table_page_{table}.log",
    wildcard_constraints:
        table="|".join(REPORT_TABLES),
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.function("twoscale.report.pages.table_page"),
        config=lambda wildcards: canonical_json({"run": runs.selected, "table": wildcards.table}),
        caption=runs.report.caption(),
    shell:
        JOB


rule report_pages:
    """Target: everything that the report shows; `make report` makes report.html of it"""
    input:
        runs.report.results,
        runs.report.pictures,
        "results/report/overview.html" if runs.report.figures else [],
        expand("results/report/{table}.html", table=REPORT_TABLES if runs.report.claims else []),
        "results/report/runtimes.html",
        runs.report.pages if runs.report.claims else [],
