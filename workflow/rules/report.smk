# The pages of the report, and the snapshot of a run: for the docs of a run, or to hand it on.

from twoscale.claims.scale import scales
from twoscale.config import user_values


rule report_pages:
    """Target: everything that the report shows; `make report` makes report.html of it"""
    input:
        runs.figures.results,
        runs.figures.pictures,
        "results/report/overview.html" if runs.figures.reported else [],
        "results/report/claims_in_full.html" if runs.figures.claims else [],


# The first page of the report, workflow/report/workflow.rst, shows the overview.
use rule table_job as write_overview with:
    """Job: the overview of the report: verdicts, and the results of each figure in sentences"""
    input:
        tables=runs.figures.reported_tables,
        claims=[TABLE.format("claims")] if runs.figures.claims else [],
        pictures=runs.figures.pictures,
    output:
        page=report(
            "results/report/overview.html",
            caption="../report/overview.rst",
            category="Claims",
            labels={"page": "Overview"},
        ),
        results="results/report/results.json",
    log:
        "results/logs/write_overview.log",
    localrule: True
    params:
        **runs.params.call(
            "twoscale.report.pages.write_overview",
            config=runs.figures.overview_config,
            modules=runs.figures.sentence_modules,
        ),
        caption=runs.figures.caption(),


use rule table_job as write_claims_page with:
    """Job: the page of the claims for the report"""
    input:
        claims=SHOWN.format("claims.md"),
    output:
        page=report(
            "results/report/claims_in_full.html",
            caption="../report/claims.rst",
            category="Claims",
            labels={"page": "Each claim in full"},
        ),
    log:
        "results/logs/write_claims_page.log",
    localrule: True
    params:
        **runs.params.call("twoscale.report.pages.claims_page"),
        caption=runs.figures.caption(),


rule snapshot:
    """Target: figures, claims and tables of the run in one folder, with a manifest"""
    input:
        "results/snapshot",


use rule table_job as take_snapshot with:
    """Job: copy figures, claims and tables of the run to one folder, with a manifest"""
    input:
        results=runs.figures.snapshot_files,
        training=TABLE.format("training"),
        tokens=runs.data.data_file("tokens.json"),
        segments=runs.at_checkpoints("results/{run}/training/iteration_{iteration}.parquet", untrained=False),
    output:
        snapshot=directory("results/snapshot"),
    log:
        "results/logs/take_snapshot.log",
    localrule: True
    params:
        **runs.params.call(
            "twoscale.report.release.take_snapshot",
            config=runs.params.config_json("run", plain=user_values, scales=lambda config: scales(config).plain),
        ),
