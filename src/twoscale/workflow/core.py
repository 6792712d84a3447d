"""The jobs of the core that follow training, as rows like those of the studies."""

from twoscale.claims.scale import scales
from twoscale.config import text_label, user_values
from twoscale.jobs.rows import QUALITY, REPORT_RESULTS, SEGMENT, LocalJob, TorchJob, all_cores, module_of
from twoscale.tables import CLAIM_TABLES

CRITERION = {
    "quality": QUALITY,
    "loops": "results/{run}/exits/{grid}/{criterion}.loops.parquet",
    "cost_matched": "results/{run}/exits/{grid}/{criterion}.cost_matched.parquet",
}
TRAJECTORIES = ("trajectories", "paths", "drift")
METRICS = ("loop_metrics", "drift", "loop_sequences", "drift_sequences")
EXIT_TABLES = ("exit_quality", "exit_loops", "exit_cost_matched")

# The verdicts on the claims of the paper; the only job besides the figures that released tables need.
JUDGE_CLAIMS = LocalJob(
    name="judge_claims",
    function="twoscale.report.claims.judge_claims",
    inputs=lambda runs: {name: runs.table_file(table) for name, table in CLAIM_TABLES.items()},
    outputs={
        "table": "results/{selected}/tables/claims.parquet",
        "regime": "results/{selected}/tables/regime.parquet",
        "page": "results/{selected}/figures/claims.md",
    },
    tables=("claims", "regime"),
    config=lambda runs: runs.params.slice(
        *("run", "seed"),
        text=lambda config: text_label(config.data),
        max_loops=lambda config: config.exits.max_loops,
        warmup_iterations=lambda config: config.train.warmup_iterations,
        published=lambda config: config.model.source == "published",
        scales=lambda config: scales(config).plain,
    ),
)

JOBS = (
    JUDGE_CLAIMS,
    # --- the logs of all segments of training, joined
    LocalJob(
        name="aggregate_training",
        function="twoscale.dynamics.aggregate.join_training",
        inputs=lambda runs: {
            "logs": runs.at_checkpoints(SEGMENT, untrained=False),
            "loops": runs.at_checkpoints(SEGMENT.replace(".parquet", ".loops.parquet"), untrained=False),
        },
        outputs={name: f"results/{{run}}/tables/{name}.parquet" for name in ("training", "training_loops")},
        tables=["training", "training_loops"],
        trained=True,
    ),
    # --- trajectories of held-out tokens through the loops
    TorchJob(
        name="extract_trajectories",
        function="twoscale.dynamics.trajectories.run",
        outputs={name: f"results/{{run}}/{name}/iteration_{{iteration}}.parquet" for name in TRAJECTORIES},
        tables=["trajectories", "token_paths", "token_drift"],
        config=lambda runs: runs.params.slice(
            "seed", "device", "model", "trajectories", "path_types", "trajectory_sequences"
        ),
        dtype="trajectories",
        group=lambda runs: "analyses_{run}_{iteration}",
    ),
    LocalJob(
        name="aggregate_metrics",
        function="twoscale.dynamics.aggregate.metrics",
        inputs=lambda runs: {
            "trajectories": runs.at_checkpoints("results/{run}/trajectories/iteration_{iteration}.parquet"),
            "token_drift": runs.at_checkpoints("results/{run}/drift/iteration_{iteration}.parquet"),
        },
        outputs={name: f"results/{{run}}/tables/{name}.parquet" for name in METRICS},
        tables=METRICS,
    ),
    TorchJob(
        name="extract_states",
        function="twoscale.dynamics.state_paths.extract_states",
        inputs=lambda runs: {"tokenizer": runs.tokenizer_file},
        outputs={"states": "results/{run}/states.safetensors"},
        config=lambda runs: runs.params.slice(
            *("seed", "device", "model", "trajectories", "trajectory_sequences"),
            tokenizer=lambda config: config.tokenizer.name,
        ),
        dtype="trajectories",
        minutes=30,
        group=lambda runs: runs.params.last_group,
    ),
    LocalJob(
        name="project_states",
        function="twoscale.dynamics.state_paths.project_states",
        inputs=lambda runs: {"states": "results/{run}/states.safetensors"},
        outputs={"state_paths": "results/{run}/tables/state_paths.parquet"},
        tables=["state_paths"],
    ),
    # --- exit criteria at the last checkpoint. Each has a quality job, which first tries a user's criterion in both
    # engines; in the latency job all take turns. Snakemake deletes the outputs of a job when it starts, so joins and
    # latency wait for the quality of users' criteria: if one fails, the tables of the others are kept. (Not with
    # `ancient`: Snakemake then overlooks that the waiting job has changed, too.)
    TorchJob(
        name="measure_exit_quality",
        function="twoscale.exits.benchmark.measure_exit_quality",
        outputs=CRITERION,
        tables=EXIT_TABLES,
        config=lambda runs: runs.params.exit_slice(),
        dtype="exits",
        minutes=120,
        threads=lambda runs, cores: runs.params.exit_threads(cores),
        cpus=4,
    ),
    LocalJob(
        name="join_exit_quality",
        function="twoscale.dynamics.aggregate.join_exit_quality",
        inputs=lambda runs: {f"{name}_files": runs.each_criterion(path) for name, path in CRITERION.items()},
        outputs={name: f"results/{{run}}/tables/{{grid}}_{name}.parquet" for name in CRITERION},
        tables=EXIT_TABLES,
    ),
    TorchJob(
        name="benchmark_exits",
        function="twoscale.exits.benchmark.run",
        inputs=lambda runs: {"criteria": runs.each_criterion(QUALITY, users_of="exit")},  # which may fail
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
    ),
    # --- pages of the report; the first one, workflow.rst, shows the overview
    LocalJob(
        name="write_overview",
        function="twoscale.report.pages.write_overview",
        inputs=lambda runs: {
            **{name: runs.figures.reported_table(name) for name in runs.figures.sentences},
            "claims": [runs.table_file("claims")] if runs.figures.claims else [],
            "pictures": runs.figures.pictures,
        },
        outputs={"page": "results/report/overview.html", "results": REPORT_RESULTS},
        config=lambda runs: runs.figures.overview_slice,
        modules=lambda runs: [module_of(path) for path in runs.figures.sentences.values()],
        report=("Claims", "Overview"),
        caption_file="workflow/report/overview.rst",
    ),
    LocalJob(
        name="write_claims_page",
        function="twoscale.report.pages.claims_page",
        inputs=lambda runs: {"claims": runs.figures.drawn("claims.md")},
        outputs={"page": "results/report/claims_in_full.html"},
        report=("Claims", "Each claim in full"),
        caption_file="workflow/report/claims.rst",
    ),
    # --- for the docs of a run, or to hand it on
    LocalJob(
        name="take_snapshot",
        function="twoscale.report.release.take_snapshot",
        inputs=lambda runs: {
            "results": runs.figures.snapshot_files,
            "training": runs.table_file("training"),
            "tokens": runs.data_file("tokens.json"),
            "segments": runs.at_checkpoints(SEGMENT, untrained=False),
        },
        outputs={"snapshot": "results/snapshot"},
        config=lambda runs: runs.params.slice("run", plain=user_values, scales=lambda config: scales(config).plain),
        target="snapshot",
    ),
)
