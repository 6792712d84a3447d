# Figures beside those of the paper, for the run chosen by `run`: rule, script, caption and module share a name.
#
# in:  results/{run}/tables/training.parquet
# out: results/training.pdf


SUPPLEMENTARY = ["results/training.pdf"]


rule training:
    input:
        training=f"results/{RUN}/tables/training.parquet",
    output:
        in_supplement("training"),
    log:
        "results/logs/training.log",
    conda:
        "../../envs/analysis.yaml"
    params:
        config=figure_config(
            mean_loops=RUNS[RUN].model.mean_loops,
            held_out_loops=RUNS[RUN].train.held_out_loops,
            clip=RUNS[RUN].train.grad_clip,
        ),
        code=code("training"),
        caption=caption,
    shell:
        "python scripts/training.py --config {params.config:q} --training {input.training:q} --output {output:q}"
        " > {log:q} 2>&1"
