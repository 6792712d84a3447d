# Pages that only the report shows: the overview, the claims, tables to filter, and runtimes; the run to hand on.
#
# in:  results/{run}/tables/*.parquet, results/claims.md, results/{run}/benchmarks/*.tsv, results/*.svg
# out: results/report/*.html, results/report/results.json, results/snapshot, results/rocrate

from snakemake import __version__ as SNAKEMAKE_VERSION

from twoscale.config import user_values
from twoscale.canonical import canonical_json
from twoscale.workflow.params import module_of
from twoscale.workflow.report import REPORT_RESULTS

REPORT_TABLES = ["claims", "loop_metrics", "drift", "exit_quality", "exit_latency", "check_cost"]


# The first page of the report, workflow.rst, shows the overview.
rule write_overview:
    input:
        **{name: runs.report.figure_table(name) for name in runs.report.sentences},
        claims=[TABLE.format("claims")] if runs.report.claims else [],
        pictures=runs.report.pictures,
    output:
        page=report(
            "results/report/overview.html",
            caption="../report/overview.rst",
            category="Claims",
            labels={"page": "Overview"},
        ),
        results=REPORT_RESULTS,
    log:
        "results/logs/write_overview.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.script("write_overview", modules=[module_of(path) for path in runs.report.sentences.values()]),
        config=runs.report.overview_slice,
        caption=runs.report.caption(),
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
        **runs.params.script("write_table_page"),
        config=lambda wildcards: canonical_json({"run": runs.selected, "table": wildcards.table}),
        caption=runs.report.caption(),
    shell:
        JOB


# The benchmark files are no inputs, because no rule declares them as outputs. They exist once the figures do.
rule write_runtimes:
    input:
        runs.report.results,
    output:
        page=report(
            "results/report/runtimes.html",
            caption="../report/runtimes.rst",
            category="Runtime",
            labels={"page": "Runtime of each rule"},
        ),
    log:
        "results/logs/write_runtimes.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.script("write_runtimes"),
        config=runs.params.slice("run"),
        benchmarks=lambda wildcards, output: Path(output.page).parents[1] / runs.selected / "benchmarks",
        caption=runs.report.caption(),
    shell:
        "{params.command} --config {params.config:q} --benchmarks {params.benchmarks:q} {params.files} > {log:q} 2>&1"


# For the docs of a run, or to hand it on. The benchmark files are no inputs, as in write_runtimes.
rule take_snapshot:
    input:
        results=runs.report.snapshot_files,
        training=TABLE.format("training"),
        tokens=runs.paths.data_file("tokens.json"),
        segments=runs.paths.at_checkpoints("results/{run}/training/iteration_{iteration}.parquet", untrained=False),
    output:
        snapshot=directory("results/snapshot"),
    log:
        "results/logs/take_snapshot.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.script("take_snapshot"),
        config=runs.params.slice("run", plain=lambda config: user_values(config)),
        benchmarks=lambda wildcards, output: Path(output.snapshot).parent / runs.selected / "benchmarks",
    shell:
        "{params.command} --config {params.config:q} --benchmarks {params.benchmarks:q} {params.files} > {log:q} 2>&1"


rule snapshot:
    input:
        "results/snapshot",


# What the jobs were comes from Snakemake's records, which are no inputs.
rule write_rocrate:
    input:
        snapshot="results/snapshot",
    output:
        crate=directory("results/rocrate"),
    log:
        "results/logs/write_rocrate.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.script("write_rocrate"),
        config=runs.params.slice("run", snakemake=lambda config: SNAKEMAKE_VERSION),
    shell:
        JOB


rule rocrate:
    input:
        "results/rocrate",


rule report_pages:
    input:
        runs.report.results,
        runs.report.pictures,
        "results/report/overview.html" if runs.report.figures else [],
        expand("results/report/{table}.html", table=REPORT_TABLES if runs.report.claims else []),
        "results/report/runtimes.html",
        runs.report.pages if runs.report.claims else [],
