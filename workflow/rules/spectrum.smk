# Eigenvalues of loop steps at their fixed points, beside the paths of tokens, at every checkpoint.
#
# in:  checkpoints, data/{val,train}.bin
# out: spectrum/iteration_*.parquet, tables/{spectrum,spectrum_metrics,slow_tokens,token_spectrum}.parquet


rule measure_spectrum:
    input:
        runs.model_files,
        **HELD_OUT,
        train=runs.training_tokens,
        checkpoint=runs.checkpoint_file,
    output:
        spectrum="results/{run}/spectrum/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_spectrum_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_spectrum_{iteration}.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("spectrum", memory=8000, minutes=120),
    params:
        **kept_script(
            "measure_spectrum",
            runs.slice(
                *("seed", "device", "model", "spectrum", "spectrum_sequences", "exact_sequences"),
                loops=lambda config: config.trajectories.loops,
            ),
            "token_spectrum",
        ),
    shell:
        JOB


rule aggregate_spectrum:
    input:
        tokens=runs.at_spectrum_checkpoints("results/{run}/spectrum/iteration_{iteration}.parquet"),
    output:
        token_spectrum="results/{run}/tables/token_spectrum.parquet",
        spectrum="results/{run}/tables/spectrum.parquet",
        spectrum_metrics="results/{run}/tables/spectrum_metrics.parquet",
        slow_tokens="results/{run}/tables/slow_tokens.parquet",
    log:
        "results/{run}/logs/aggregate_spectrum.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        **script("aggregate_spectrum"),
        config=runs.slice("run", "seed"),
        tables=table_columns("token_spectrum", "spectrum", "spectrum_metrics", "slow_tokens"),
    shell:
        JOB
