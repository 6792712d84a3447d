# What the states of all loop steps predict, at the last checkpoint.
#
# in:  the last checkpoint, data/val.bin
# out: tables/lens.parquet


rule measure_lens:
    input:
        runs.model_files,
        **HELD_OUT,
        checkpoint=runs.last_checkpoint,
    output:
        lens="results/{run}/tables/lens.parquet",
    log:
        "results/{run}/logs/measure_lens.log",
    benchmark:
        "results/{run}/benchmarks/measure_lens.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("lens", memory=8000, minutes=60),
    params:
        **kept_script(
            "measure_lens",
            runs.slice(
                *("run", "seed", "device", "model", "lens"),
                *("lens_sequences", "lens_steps", "lens_other_loops"),
            ),
            "lens",
        ),
    shell:
        JOB
