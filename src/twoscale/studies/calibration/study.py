"""Thresholds of exit criteria that keep a guarantee about quality: results/calibration.pdf."""

from typing import TYPE_CHECKING, Annotated

from twoscale.config.sections import Criteria, ExitsConfig, grids
from twoscale.config.types import Count, Distinct, Fraction, Positive, Section, key
from twoscale.figures.catalogue import Figure, exit_max_loops, table
from twoscale.jobs.rows import LocalJob, TorchJob
from twoscale.tables import Column
from twoscale.tables import table as columns

if TYPE_CHECKING:
    from twoscale.config.sections import CoreConfig


class CalibrationConfig(Section):
    """Calibration of exit thresholds on held-out documents (results/calibration.pdf). A quarter of the documents
    orders the thresholds by evaluations, a quarter reports the result, and the others, at least 13 at delta = 0.1,
    choose the threshold with the fewest evaluations for which E[clipped loss] <= epsilon with probability 1 - delta
    over these documents (Learn then Test, arXiv 2110.01052). The loss is the rise of a document's cross-entropy over
    full depth, clipped to [0, 5 epsilon]. Loop steps, readout, KV slots, precision and batch size are those of exits.
    """

    criteria: Criteria = key(
        grids(
            step_norm=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
            kl=[1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.1],
            acceleration=[1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0],
        ),
        "Exit criteria and their thresholds. null removes a criterion that the defaults or the preset include.",
    )
    tokens: Count = key(131_072, "Held-out tokens, in whole sequences, at most data.held_out_tokens.")
    nats: Annotated[tuple[Positive, ...], *Distinct] = key(
        (0.01, 0.02, 0.05, 0.1), "Values of epsilon, each with a guarantee, in nats per token."
    )
    delta: Fraction = key(0.1, "Probability with which a guarantee may fail.", source="arXiv 2110.01052")

    def exit_grid(self, config: "CoreConfig") -> ExitsConfig:
        return config.exits.model_copy(update={"criteria": self.criteria})

    def sequences(self, config: "CoreConfig") -> int:
        """Whole sequences in calibration.tokens, at most those of the held-out text, at least one."""
        available = (config.data.held_out_tokens - 1) // config.model.context_length
        return max(1, min(config.sequences("calibration"), available))


SECTIONS = {"calibration": CalibrationConfig}

TABLES: dict[str, dict[str, Column]] = {
    # The thresholds of an exit criterion from many evaluations to few: one row per (criterion, point, held-out
    # sequence) of the documents used to choose or to report. Means are over the tokens that belong to `document`.
    "calibration_runs": columns(
        "run criterion point threshold part sequence document tokens ce",
        point=("int32", "number of the threshold, from 0"),
        part=("string", "calibration or report"),
        tokens=("int64", "number of tokens of the sequence that belong to the document"),
        full_depth_ce=("float64", "nats per token at full depth"),
        evaluations=("float64", "mean evaluations of f per token and group"),
    ),
    # Guarantees and whether they were kept: one row per (criterion, epsilon). Columns from `loss` on are on the
    # documents of the report. If no threshold was chosen, tokens run at full depth.
    "calibration": columns(
        "run criterion",
        epsilon=("float64", "guaranteed upper bound on the mean clipped loss over documents, in nats per token"),
        delta=("float64", "probability with which the guarantee may be broken"),
        units=("int64", "number of documents used to choose the threshold"),
        point=("int32", "number of the chosen threshold; -1: none"),
        threshold=("float64", "the chosen threshold; null: none"),
        p_value=("float64", "p-value of the chosen point, or of the first point if none is chosen"),
        report_documents=("int64",),
        loss=("float64", "mean loss over documents, each clipped as in the test"),
        loss_low=("float64", "lower end of the 95 % interval over documents"),
        loss_high=("float64", "upper end of the interval"),
        unclipped=("float64", "mean loss over tokens, not clipped"),
        saved=("float64", "evaluations saved, as a share of the evaluations at full depth"),
        saved_low=("float64", "lower end of the 95 % interval over documents"),
        saved_high=("float64", "upper end of the interval"),
        verdict=("string", "verdict on the guarantee: holds, does not hold, cannot be judged, or no threshold"),
    ),
}

FIGURES = (
    Figure(
        "calibration",
        table("calibration"),
        loops=exit_max_loops,
        title="Calibration: evaluations saved at a guaranteed quality",
    ),
)

RUNS = "results/{run}/calibration/{criterion}.parquet"
JOBS = (
    TorchJob(
        name="measure_calibration",
        function="twoscale.studies.calibration.measure.run",
        inputs=lambda runs: {"probe": runs.probe_file()},
        outputs={"runs": RUNS},
        tables=["calibration_runs"],
        config=lambda runs: runs.params.exit_slice(
            "calibration", sequences=lambda config: config.calibration.sequences(config)
        ),
        dtype="exits",
        minutes=240,
        threads=lambda runs, cores: runs.params.exit_threads(cores, "calibration"),
        cpus=4,
    ),
    LocalJob(
        name="aggregate_calibration",
        function="twoscale.studies.calibration.draw.run",
        inputs=lambda runs: {"runs_files": runs.each_criterion(RUNS, "calibration")},
        outputs={"calibration": "results/{run}/tables/calibration.parquet"},
        tables=["calibration"],
        config=lambda runs: runs.params.slice(
            *("run", "seed", "calibration"), max_loops=lambda config: config.exits.max_loops
        ),
    ),
)
