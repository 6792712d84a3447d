# The arena: exit criteria beside controls of the same cost and beside oracles.
#
# in:  the last checkpoint, data/val.bin, probe.safetensors for the criterion `probe`; the controls, which exits.smk
#      measures: tables/pareto_{quality,loops,controls}.parquet
# out: tables/{pareto_regret,oracle_frontier}.parquet, tables/{arena,settling}.parquet, results/arena.md;
#      the figure is results/arena.pdf
#
# It is about the grid pareto, which has all criteria and thresholds at which tokens leave; pareto.pdf needs the same
# quality jobs.


rule measure_exit_regret:
    input:
        runs.each_criterion(QUALITY, "pareto", of_users=True),
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
        probe=runs.probe_file("pareto"),
    output:
        exit_regret="results/{run}/tables/pareto_regret.parquet",
        oracle_frontier="results/{run}/tables/oracle_frontier.parquet",
    log:
        "results/{run}/logs/measure_exit_regret.log",
    benchmark:
        "results/{run}/benchmarks/measure_exit_regret.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("exits", memory=8000, minutes=120),
    params:
        **kept_script(
            "measure_exit_regret",
            runs.exit_slice("pareto", sections=["oracle", "oracle_sequences"]),
            "exit_regret",
            "oracle_frontier",
        ),
    shell:
        JOB


rule compare_exits:
    input:
        **runs.page_tables(
            "arena",
            "oracle_frontier",
            exit_quality="pareto_quality",
            exit_loops="pareto_loops",
            exit_controls="pareto_controls",
            exit_regret="pareto_regret",
        ),
    output:
        arena=TABLE.format("arena"),
        settling=TABLE.format("settling"),
        page="results/arena.md",
    log:
        "results/logs/compare_exits.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("compare_exits"),
        config=runs.slice("run", "seed", page=runs.arena_page),
        tables=table_columns("arena", "settling"),
    shell:
        JOB
