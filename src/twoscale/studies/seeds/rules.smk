# The run under several seeds: the verdicts on the claims under each seed and over all of them (study.py).

from twoscale.claims.scale import scales
from twoscale.config import text_label
from twoscale.figures.catalogue import is_published, inputs_from
from twoscale.tables import CLAIM_TABLES


rule seeds:
    """Target: the run under several seeds: spread of every quantity, verdicts over seeds"""
    input:
        "results/seeds.pdf",
        "results/seeds.md",


use rule table_job as compare_seeds with:
    """Job: the verdicts under each seed and over all of them, and the page seeds.md"""
    input:
        **runs.figures.page_inputs("seeds", inputs_from(**CLAIM_TABLES)),
    output:
        table=TABLE.format("seeds"),
        page=SHOWN.format("seeds.md"),
    log:
        LOG.format("compare_seeds"),
    localrule: True
    params:
        **runs.params.call(
            "twoscale.studies.seeds.draw.run",
            tables=("seeds",),
            config=runs.params.config_json(
                *("run", "seed"),
                seeds=lambda config: [runs[run].seed for run in runs.seed_runs],
                text=lambda config: text_label(config.data),
                max_loops=lambda config: config.exits.max_loops,
                warmup_iterations=lambda config: config.train.warmup_iterations,
                published=is_published,
                scales=lambda config: scales(config).plain,
            ),
        ),
