# Training as a chain of segments, one job per checkpoint.
#
# in:  data/{train,val}.bin, data/tokens.json
# out: checkpoints/step_*.safetensors, training/step_*.parquet; the optimizer state of the last step


# one alternative a run: its name, if its last step follows
LAST_ITERATIONS = "|".join(
    rf"{re.escape(run)}(?=/(?:checkpoints|training|logs|benchmarks)/\D*{checkpoint_iterations(run)[-1]:06d}\.)"
    for run in RUNS
)


rule init_model:
    input:
        metadata=data_file("tokens.json"),
    output:
        "results/{run}/checkpoints/iteration_000000.safetensors",
    log:
        "results/{run}/logs/init_model.log",
    benchmark:
        "results/{run}/benchmarks/init_model.tsv"
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=growing(4000),
        runtime=30,
    params:
        config=training_config,
        code=code("init_model"),
    shell:
        "python scripts/init_model.py --config {params.config:q} --metadata {input.metadata:q} --checkpoint {output:q}"
        " > {log:q} 2>&1"


rule train_segment:
    input:
        start=segment_start,
        train=data_file("train.bin"),
        val=data_file("val.bin"),
        metadata=data_file("tokens.json"),
    output:
        checkpoint="results/{run}/checkpoints/iteration_{iteration}.safetensors",
        optimizer=temp("results/{run}/checkpoints/iteration_{iteration}.optimizer.safetensors"),
        log="results/{run}/training/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/train_segment_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/train_segment_{iteration}.tsv"
    wildcard_constraints:
        step=r"(?!000000)\d{6}",
    conda:
        "../../envs/torch.yaml"
    threads: training_threads
    resources:
        mem_mb=growing(16000),
        # never more: the next attempt goes on from the partial state
        runtime=1440,
        # `threads` is cut to the cores of the machine that runs Snakemake, this is not
        cpus_per_task=training_cpus,
        gpu=training_gpus,
        gpu_slot=training_gpus,
    params:
        config=training_config,
        runtime=runtime,
        launch=launch,
        partial=lambda wildcards, output: Path(output.checkpoint).with_suffix(".partial.safetensors"),
        tables=written("training"),
        code=code("train_segment"),
    shell:
        "{params.launch} scripts/train_segment.py --config {params.config:q} --runtime {params.runtime:q}"
        " --train {input.train:q} --val {input.val:q} --metadata {input.metadata:q} --start {input.start:q}"
        " --until $((10#{wildcards.iteration})) --partial {params.partial:q}"
        " --checkpoint {output.checkpoint:q} --optimizer {output.optimizer:q} --log {output.log:q}"
        " > {log:q} 2>&1"


# The optimizer state of the last step stays, so that a longer schedule continues the run instead of repeating it.
use rule train_segment as train_segment_last with:
    output:
        checkpoint="results/{run}/checkpoints/iteration_{iteration}.safetensors",
        optimizer="results/{run}/checkpoints/iteration_{iteration}.optimizer.safetensors",
        log="results/{run}/training/iteration_{iteration}.parquet",
    wildcard_constraints:
        run=LAST_ITERATIONS,


ruleorder: train_segment_last > train_segment
