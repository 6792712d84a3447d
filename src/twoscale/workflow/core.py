"""The jobs of the core that measure the last checkpoint or every one, as rows like those of the studies."""

from twoscale.analysis.costs import Cost, checkpoints, exits_cost, oracle_cost, passes_cost, scales
from twoscale.config import Config, user_values
from twoscale.workflow.params import module_of
from twoscale.workflow.paths import PROBE, QUALITY
from twoscale.workflow.report import REPORT_RESULTS
from twoscale.workflow.rows import Comparison, Measurement, all_cores

SEGMENT = "results/{run}/training/iteration_{iteration}.parquet"
CRITERION = {
    "quality": QUALITY,
    "loops": "results/{run}/exits/{grid}/{criterion}.loops.parquet",
    "cost_matched": "results/{run}/exits/{grid}/{criterion}.cost_matched.parquet",
}
TRAJECTORIES = ("trajectories", "paths", "drift")
EXIT_TABLES = ("exit_quality", "exit_loops", "exit_cost_matched")

JOBS = (
    # --- the logs of all segments of training, joined
    Comparison(
        name="aggregate_training",
        function="twoscale.dynamics.aggregate.join_training",
        inputs=lambda runs: {
            "logs": runs.paths.at_checkpoints(SEGMENT, untrained=False),
            "loops": runs.paths.at_checkpoints(SEGMENT.replace(".parquet", ".loops.parquet"), untrained=False),
        },
        outputs={name: f"results/{{run}}/tables/{name}.parquet" for name in ("training", "training_loops")},
        tables=["training", "training_loops"],
        trained=True,
    ),
    # --- trajectories of held-out tokens through the loops
    Measurement(
        name="extract_trajectories",
        function="twoscale.dynamics.trajectories.run",
        outputs={name: f"results/{{run}}/{name}/iteration_{{iteration}}.parquet" for name in TRAJECTORIES},
        tables=["trajectories", "token_paths", "token_drift"],
        config=lambda runs: runs.params.slice(
            "seed", "device", "model", "trajectories", "path_types", "trajectory_sequences"
        ),
        dtype="trajectories",
        cost=lambda run: passes_cost(run, [(checkpoints(run) * run.trajectory_sequences, run.trajectories.loops)]),
        group=lambda runs: "analyses_{run}_{iteration}",
    ),
    Measurement(
        name="extract_states",
        function="twoscale.dynamics.sequence_states.run",
        inputs=lambda runs: {"tokenizer": runs.paths.tokenizer_file},
        outputs={"states": "results/{run}/states.safetensors"},
        config=lambda runs: runs.params.slice(
            *("seed", "device", "model", "trajectories", "trajectory_sequences"),
            tokenizer=lambda config: config.tokenizer.name,
        ),
        dtype="trajectories",
        minutes=30,
        group=lambda runs: runs.resources.last_group,
    ),
    Comparison(
        name="project_states",
        function="twoscale.dynamics.state_paths.run",
        inputs=lambda runs: {"states": "results/{run}/states.safetensors"},
        outputs={"state_paths": "results/{run}/tables/state_paths.parquet"},
        tables=["state_paths"],
    ),
    # --- exit criteria at the last checkpoint. Each has a quality job, which first tries a user's criterion in both
    # engines; in the latency job all take turns. Snakemake deletes the outputs of a job when it starts, so joins and
    # latency wait for the quality of users' criteria: if one fails, the tables of the others are kept. (Not with
    # `ancient`: Snakemake then overlooks that the waiting job has changed, too.)
    Measurement(
        name="measure_exit_quality",
        function="twoscale.exits.jobs.measure_exit_quality",
        inputs=lambda runs: {"probe": runs.paths.probe_file()},
        outputs=CRITERION,
        tables=EXIT_TABLES,
        config=lambda runs: runs.params.exit_slice(),
        dtype="exits",
        minutes=120,
        threads=lambda runs, cores: runs.resources.exit_threads(cores),
        cpus=4,
    ),
    Comparison(
        name="join_exit_quality",
        function="twoscale.dynamics.aggregate.join_exit_quality",
        inputs=lambda runs: {f"{name}_files": runs.paths.each_criterion(path) for name, path in CRITERION.items()},
        outputs={name: f"results/{{run}}/tables/{{grid}}_{name}.parquet" for name in CRITERION},
        tables=EXIT_TABLES,
    ),
    Measurement(
        name="benchmark_exits",
        function="twoscale.exits.benchmark.run",
        inputs=lambda runs: runs.paths.of_exits("exit"),
        outputs={
            "latency": "results/{run}/tables/exit_latency.parquet",
            "latency_loops": "results/{run}/tables/exit_latency_loops.parquet",
            "check_cost": "results/{run}/tables/check_cost.parquet",
        },
        tables=["exit_latency", "exit_latency_loops", "check_cost"],
        config=lambda runs: runs.params.exit_slice("exit"),
        dtype="exits",
        minutes=240,
        threads=all_cores,
        cpus=4,
        # with the quality of all criteria
        cost=lambda run: exits_cost(run, run.exits, run.quality_sequences),
    ),
    # --- pages of the report; the first one, workflow.rst, shows the overview
    Comparison(
        name="write_overview",
        function="twoscale.report.overview.run",
        inputs=lambda runs: {
            **{name: runs.report.figure_table(name) for name in runs.report.sentences},
            "claims": [runs.paths.table_file("claims")] if runs.report.claims else [],
            "pictures": runs.report.pictures,
        },
        outputs={"page": "results/report/overview.html", "results": REPORT_RESULTS},
        config=lambda runs: runs.report.overview_slice,
        modules=lambda runs: [module_of(path) for path in runs.report.sentences.values()],
        report=("Claims", "Overview"),
        caption_file="workflow/report/overview.rst",
    ),
    Comparison(
        name="write_runtimes",
        function="twoscale.report.pages.runtimes_page",
        inputs=lambda runs: {"results": runs.report.results},  # the benchmark files exist once these do
        outputs={"page": "results/report/runtimes.html"},
        report=("Runtime", "Runtime of each rule"),
        caption_file="workflow/report/runtimes.rst",
    ),
    Comparison(
        name="write_claims_page",
        function="twoscale.report.pages.claims_page",
        inputs=lambda runs: {"claims": runs.report.drawn("claims.md")},
        outputs={"page": "results/report/claims_in_full.html"},
        report=("Claims", "Each claim in full"),
        caption_file="workflow/report/claims.rst",
    ),
    # --- for the docs of a run, or to hand it on
    Comparison(
        name="take_snapshot",
        function="twoscale.report.release.take_snapshot",
        inputs=lambda runs: {
            "results": runs.report.snapshot_files,
            "training": runs.paths.table_file("training"),
            "tokens": runs.paths.data_file("tokens.json"),
            "segments": runs.paths.at_checkpoints(SEGMENT, untrained=False),
        },
        outputs={"snapshot": "results/snapshot"},
        config=lambda runs: runs.params.slice("run", plain=user_values, scales=lambda config: scales(config).plain),
        target="snapshot",
    ),
)


def _probe_cost(run: Config) -> Cost:
    """The probe is fitted on the states that an oracle decodes, if a grid has its criterion."""
    fitted = any("probe" in exits.criteria for exits in run.exit_grids.values())
    return oracle_cost(run, run.sequences("probe")) if fitted else Cost()


# The probe of the criterion `probe`, fitted on training text where a run lists this criterion.
PROBE_JOB = Measurement(
    name="train_probe",
    function="twoscale.exits.probe_fit.run",
    inputs=lambda runs: {"val": [], "train": runs.paths.data_file("train.bin")},
    outputs={"probe": f"results/{{run}}/{PROBE}"},
    config=lambda runs: runs.params.slice(
        *("run", "seed", "device", "model", "probe"),
        sequences=lambda config: config.sequences("probe"),
        max_loops=lambda config: config.exits.max_loops,
    ),
    dtype="probe",
    cost=_probe_cost,
    trained=True,
)
