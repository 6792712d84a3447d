"""Figures and jobs of the study."""

from twoscale.analysis.costs import Cost
from twoscale.config.sections import Config
from twoscale.figures.catalogue import Figure, table
from twoscale.model.flops import flops_per_token
from twoscale.studies.lens.steps import other_loops, steps_of
from twoscale.workflow.rows import Measurement

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


def _cost(run: Config) -> Cost:
    """The loop steps of each group, and for each decoded k the layers after it, at most."""
    model, steps, other = run.model, steps_of(run), other_loops(run)
    total = 0.0
    for group in range(len(model.groups)):
        after = len(model.groups) - group - 1
        total += flops_per_token(model, [other] * group + [steps[-1]] + [0] * after).forward
        total += len(steps) * flops_per_token(model, [0] * (group + 1) + [other] * after).forward
    return Cost(model.context_length * run.sequences("lens") * total)


JOBS = (
    Measurement(
        name="measure_lens",
        function="twoscale.studies.lens.measure.run",
        outputs={"lens": "results/{run}/tables/lens.parquet"},
        tables=["lens"],
        config=lambda runs: runs.params.slice(
            "run", "seed", "device", "model", "lens", sequences=lambda config: config.sequences("lens")
        ),
        dtype="lens",
        cost=_cost,
    ),
)
