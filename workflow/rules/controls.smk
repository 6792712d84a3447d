# What the loops buy: the looped model beside models without loops, of as many parameters and of as many FLOPs.
#
# in:  the last checkpoint of each model under every seed, the untrained looped model, data/val.bin
# out: controls/iteration_*.parquet of each model, tables/controls.parquet, results/controls.md

CONTROL = "results/{run}/controls/iteration_{iteration}.parquet"


rule measure_control:
    input:
        **HELD_OUT,
        checkpoint=runs.checkpoint_file,
    output:
        quality=CONTROL,
    log:
        "results/{run}/logs/measure_control_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_control_{iteration}.tsv"
    wildcard_constraints:
        run=runs.trained_pattern,
    conda:
        "../../envs/torch.yaml"
    resources:
        **runs.torch_job("scaling", memory=8000, minutes=60),
    params:
        # as measure_scaling, at the loop count of the held-out loss
        **kept_script(
            "measure_scaling",
            runs.slice(
                *("seed", "device", "model", "scaling_sequences"),
                scaling=lambda config: config.scaling.model_copy(update={"loops": (config.train.held_out_loops,)}),
            ),
            "scaling_quality",
        ),
    shell:
        JOB


rule compare_controls:
    input:
        quality=runs.compared_files(CONTROL),
    output:
        controls=TABLE.format("controls"),
        page="results/controls.md",
    log:
        "results/logs/compare_controls.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **script("compare_controls"),
        config=runs.slice(
            *("run", "seed"), compared=lambda config: runs.compared(), page=lambda config: runs.controls_page()
        ),
        tables=table_columns("controls"),
    shell:
        JOB
