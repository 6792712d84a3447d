# Thresholds of exit criteria that keep a promise about quality, at the last checkpoint.
#
# in:  the last checkpoint, data/val.bin; probe.safetensors for the criterion `probe`
# out: calibration/{criterion}.{runs,paths}.parquet, tables/{calibration,calibrated_thresholds}.parquet
#
# Each criterion has a job that searches its paths through the thresholds and measures their points. Promises are
# applied afterwards, so another epsilon measures nothing again.

CALIBRATION_RUNS = "results/{run}/calibration/{criterion}.runs.parquet"
CALIBRATION_PATHS = "results/{run}/calibration/{criterion}.paths.parquet"


rule measure_calibration:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        probe=runs.probe_file(),
    output:
        runs=CALIBRATION_RUNS,
        paths=CALIBRATION_PATHS,
    log:
        "results/{run}/logs/measure_calibration.{criterion}.log",
    benchmark:
        "results/{run}/benchmarks/measure_calibration.{criterion}.tsv"
    conda:
        "../../envs/torch.yaml"
    threads: runs.exit_threads(workflow.cores, "calibration")
    resources:
        **runs.torch_job("exits", memory=8000, minutes=240, cpus_per_task=4),
    params:
        **kept_script(
            "measure_calibration",
            runs.exit_slice(
                "calibration",
                sequences=lambda config: config.calibration_sequences,
                search_share=lambda config: config.calibration.search_share,
                report_share=lambda config: config.calibration.report_share,
                path_end=lambda config: config.calibration.path_end,
            ),
            "calibration_runs",
            "calibration_paths",
        ),
    shell:
        "{params.command} --config {params.config:q} --threads {threads} {params.files} > {log:q} 2>&1"


rule aggregate_calibration:
    input:
        runs_files=runs.each_criterion(CALIBRATION_RUNS, "calibration"),
        paths_files=runs.each_criterion(CALIBRATION_PATHS, "calibration"),
    output:
        calibration="results/{run}/tables/calibration.parquet",
        thresholds="results/{run}/tables/calibrated_thresholds.parquet",
    log:
        "results/{run}/logs/aggregate_calibration.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        **script("aggregate_calibration"),
        config=runs.slice("seed", "promises", max_loops=lambda config: config.exits.max_loops),
        tables=table_columns("calibration", "calibrated_thresholds"),
    shell:
        JOB
