# The probe of the criterion `probe`, which is fitted where a run lists this criterion.
#
# in:  the last checkpoint, data/train.bin
# out: probe.safetensors


rule train_probe:
    input:
        checkpoint=runs.last_checkpoint,
        train=runs.data_file("train.bin"),
        metadata=runs.data_file("tokens.json"),
    output:
        probe="results/{run}/probe.safetensors",
    log:
        "results/{run}/logs/train_probe.log",
    benchmark:
        "results/{run}/benchmarks/train_probe.tsv"
    wildcard_constraints:
        run=runs.trained_pattern,
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("probe", memory=8000, minutes=60),
    params:
        **kept_script(
            "train_probe",
            runs.slice(
                *("run", "seed", "device", "model", "probe"),
                sequences=lambda config: config.sequences("probe"),
                max_loops=lambda config: config.exits.max_loops,
            ),
        ),
    shell:
        JOB
