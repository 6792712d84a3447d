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
        caption=runs.figures.caption(),
    shell:
        JOB


rule report_pages:
    """Target: everything that the report shows; `make report` makes report.html of it"""
    input:
        runs.figures.results,
        runs.figures.pictures,
        "results/report/overview.html" if runs.figures.reported else [],
        expand("results/report/{table}.html", table=REPORT_TABLES if runs.figures.claims else []),
        "results/report/runtimes.html",
        [job.shown for job in runs.local_jobs if job.report] if runs.figures.claims else [],
