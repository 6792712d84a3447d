# The verdicts on the claims of the paper; the only job besides the figures that released tables need.

from twoscale.claims.scale import scales
from twoscale.config import text_label


use rule table_job as judge_claims with:
    """Job: the verdicts on the claims of the paper, for the selected run"""
    input:
        loops=TABLE.format("loop_sequences"),
        drift=TABLE.format("drift_sequences"),
        quality=TABLE.format("exit_quality"),
        exit_loops=TABLE.format("exit_loops"),
        latency=TABLE.format("exit_latency"),
        costs=TABLE.format("exit_costs"),
        cost_matched=TABLE.format("exit_cost_matched"),
    output:
        table=TABLE.format("claims"),
        page=SHOWN.format("claims.md"),
    log:
        LOG.format("judge_claims"),
    localrule: True
    params:
        **runs.params.call(
            "twoscale.report.claims.judge_claims",
            tables=("claims",),
            config=runs.params.config_json(
                *("run", "seed"),
                text=lambda config: text_label(config.data),
                max_loops=lambda config: config.exits.max_loops,
                warmup_iterations=lambda config: config.train.warmup_iterations,
                published=lambda config: config.model.source == "published",
                scales=lambda config: scales(config).plain,
            ),
        ),
