"""Figures and jobs of the study."""

from twoscale.figures.catalogue import Figure, table
from twoscale.jobs.rows import TorchJob
from twoscale.studies.lens.steps import steps_of

FIGURES = (
    Figure(
        "lens",
        table("lens"),
        title="Lens: through the loops",
        loops=lambda config: steps_of(config)[-1],
        values=lambda config: {"mean_loops": config.model.mean_loops, "typical_loops": config.model.typical_loops},
        sentence="twoscale.studies.lens.compare.sentence",
    ),
)


JOBS = (
    TorchJob(
        name="measure_lens",
        function="twoscale.studies.lens.measure.run",
        outputs={"lens": "results/{run}/tables/lens.parquet"},
        tables=["lens"],
        config=lambda runs: runs.params.slice(
            "run", "seed", "device", "model", "lens", sequences=lambda config: config.sequences("lens")
        ),
        dtype="lens",
    ),
)
