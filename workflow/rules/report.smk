# All pages of the report; twoscale.workflow.core has the rows of the others.
#
# in:  results/{run}/tables/*.parquet
# out: results/report/*.html


rule report_pages:
    """Target: everything that the report shows; `make report` makes report.html of it"""
    input:
        runs.figures.results,
        runs.figures.pictures,
        "results/report/overview.html" if runs.figures.reported else [],
        [job.shown for job in runs.local_jobs if job.report] if runs.figures.claims else [],
