# Training as a chain of segments, one job per checkpoint.
#
# in:  data/{train,val}.bin, data/tokens.json
# out: checkpoints/iteration_*.safetensors, training/iteration_*.parquet; the optimizer state of the last iteration;
#
# Runs of published models have none of it.

from twoscale.base import canonical_json
from twoscale.config import runtime


rule init_model:
    """Job: the untrained model, the checkpoint at iteration 0"""
    input:
        metadata=runs.data.data_file("tokens.json"),
    output:
        checkpoint="results/{run}/checkpoints/iteration_000000.safetensors",
    log:
        "results/{run}/logs/init_model.log",
    benchmark:
        "results/{run}/benchmarks/init_model.tsv"
    wildcard_constraints:
        run=runs.trained_pattern,
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=per_attempt(4000),
        runtime=30,
    params:
        **runs.params.torch_script("init_model", config=runs.params.training_identity, tables=()),
    shell:
        JOB


rule train_segment:
    """Job: train from one checkpoint to the next"""
    input:
        **runs.data.held_out,
        start=runs.segment_start,
        train=runs.data.data_file("train.bin"),
    output:
        checkpoint=CHECKPOINT,
        optimizer=temp("results/{run}/checkpoints/iteration_{iteration}.optimizer.safetensors"),
        log="results/{run}/training/iteration_{iteration}.parquet",
        loops="results/{run}/training/iteration_{iteration}.loops.parquet",
    log:
        "results/{run}/logs/train_segment_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/train_segment_{iteration}.tsv"
    wildcard_constraints:
        run=runs.trained_pattern,
        iteration=r"(?!000000)\d{6}",
    conda:
        "../../envs/torch.yaml"
    threads: runs.resources.training_threads
    resources:
        **runs.resources.training_job(),
        mem_mb=runs.resources.training_mb,
        # does not grow: the next attempt resumes from the partial state
        runtime=1440,
    params:
        **runs.params.torch_script(
            "train_segment",
            config=runs.params.training_identity,
            tables=("training", "training_loops"),
            command=runs.params.training_command("train_segment"),
            # how training is segmented, logged and distributed does not change its result
            runtime=lambda wildcards: canonical_json(runtime(runs.of(wildcards)[1])),
        ),
        until=lambda wildcards: int(wildcards.iteration),
        partial=lambda wildcards, output: Path(output.checkpoint).with_suffix(".partial.safetensors"),
    # standard output is the terminal, where the job prints a line every train.print_seconds
    shell:
        "{params.command} --job {params.job} --until {params.until} --run {wildcards.run:q}"
        " --code {params.code}"
        " --partial {params.partial:q} {params.files} >&2 2> {log:q}"


# Keeps the last optimizer state, so that a longer schedule continues the run instead of repeating it.
use rule train_segment as train_segment_last with:
    """Job: train to the last checkpoint, and keep the optimizer state"""
    output:
        checkpoint=CHECKPOINT,
        optimizer="results/{run}/checkpoints/iteration_{iteration}.optimizer.safetensors",
        log="results/{run}/training/iteration_{iteration}.parquet",
        loops="results/{run}/training/iteration_{iteration}.loops.parquet",
    wildcard_constraints:
        run=runs.last_segments,


ruleorder: train_segment_last > train_segment


use rule table_job as aggregate_training with:
    """Job: join the logs of all segments of training"""
    input:
        logs=runs.at_checkpoints("results/{run}/training/iteration_{iteration}.parquet", untrained=False),
        loops=runs.at_checkpoints("results/{run}/training/iteration_{iteration}.loops.parquet", untrained=False),
    output:
        training="results/{run}/tables/training.parquet",
        training_loops="results/{run}/tables/training_loops.parquet",
    log:
        "results/{run}/logs/aggregate_training.log",
    wildcard_constraints:
        run=runs.trained_pattern,
    localrule: True
    params:
        **runs.params.call("twoscale.dynamics.aggregate.join_training", tables=("training", "training_loops")),
