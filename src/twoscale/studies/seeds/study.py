"""Figures and jobs of the study."""

from twoscale.claims.scale import scales
from twoscale.config.data import text_label
from twoscale.figures.catalogue import Figure, is_published, table
from twoscale.jobs.rows import LocalJob
from twoscale.tables import CLAIM_TABLES

FIGURES = (
    Figure(
        "seeds",
        table("seeds"),
        target="seeds",
        title="Seeds: verdicts and spread",
        seeds=True,
        study="seeds",
        compared=True,
    ),
)


JOBS = (
    LocalJob(
        name="compare_seeds",
        function="twoscale.studies.seeds.page.run",
        inputs=lambda runs: runs.figures.page_inputs("seeds", table(**CLAIM_TABLES)),
        outputs={"table": "results/{selected}/tables/seeds.parquet", "page": "results/{selected}/figures/seeds.md"},
        tables=["seeds"],
        config=lambda runs: runs.params.slice(
            *("run", "seed"),
            seeds=lambda config: [runs[run].seed for run in runs.study("seeds")],
            text=lambda config: text_label(config.data),
            max_loops=lambda config: config.exits.max_loops,
            warmup_iterations=lambda config: config.train.warmup_iterations,
            published=is_published,
            scales=lambda config: scales(config).plain,
        ),
        target="seeds",
    ),
)
