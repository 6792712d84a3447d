# The verdicts on the claims of the paper.
#
# in:  the tables of twoscale.tables.CLAIM_TABLES
# out: results/{run}/tables/{claims,regime}.parquet, results/{run}/figures/claims.md

from twoscale.analysis.costs import scales
from twoscale.config import text_label
from twoscale.tables import CLAIM_TABLES
from twoscale.workflow.paths import trains


rule judge_claims:
    """Job: the verdicts on the claims, with their page claims.md"""
    input:
        **{name: TABLE.format(table) for name, table in CLAIM_TABLES.items()},
    output:
        table=TABLE.format("claims"),
        regime=TABLE.format("regime"),
        page=runs.report.drawn("claims.md"),
    log:
        "results/logs/judge_claims.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.function("twoscale.report.claims_page.run"),
        config=runs.params.slice(
            *("run", "seed"),
            text=lambda config: text_label(config.data),
            max_loops=lambda config: config.exits.max_loops,
            warmup_iterations=lambda config: config.train.warmup_iterations,
            published=lambda config: not trains(config),
            scales=lambda config: scales(config).plain,
        ),
        tables=table_columns("claims", "regime"),
    shell:
        JOB
