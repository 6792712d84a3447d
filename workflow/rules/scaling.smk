# Quality at fixed loop counts, at every checkpoint.
#
# in:  checkpoints, data/val.bin
# out: scaling/iteration_*.parquet, tables/scaling.parquet


rule measure_scaling:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.checkpoint_file,
    output:
        quality="results/{run}/scaling/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_scaling_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_scaling_{iteration}.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("scaling", memory=8000, minutes=60),
    params:
        **kept_script(
            "measure_scaling",
            runs.slice("seed", "device", "model", "scaling", "scaling_sequences"),
            "scaling_quality",
        ),
    shell:
        JOB


rule aggregate_scaling:
    input:
        quality=runs.at_checkpoints("results/{run}/scaling/iteration_{iteration}.parquet"),
    output:
        scaling="results/{run}/tables/scaling.parquet",
    log:
        "results/{run}/logs/aggregate_scaling.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("aggregate_scaling"),
        config=runs.slice("run", "seed"),
        tables=table_columns("scaling"),
    shell:
        JOB
