# The model trained again under other choices: variants, adapter initialisations and baselines (study.py).

from twoscale.figures.catalogue import inputs_from
from twoscale.studies.sweeps import study as sweeps


rule variants:
    """Target: the model under several variants of the paper, side by side"""
    input:
        "results/variants.pdf",


rule adapter_init:
    """Target: the model under several adapter initialisations, and the angles that follow"""
    input:
        "results/adapter_init.pdf",


rule baselines:
    """Target: the looped model compared with models without loops"""
    input:
        "results/baselines.pdf",
        "results/baselines.md",


use rule table_job as compare_adapter_init with:
    """Job: angles and loss of each adapter initialisation"""
    input:
        **runs.figures.page_inputs("adapter_init", inputs_from("training", loops="loop_sequences")),
    output:
        adapter_init=TABLE.format("adapter_init"),
    log:
        LOG.format("compare_adapter_init"),
    localrule: True
    params:
        **runs.params.call(
            "twoscale.studies.sweeps.draw.run_adapter_init",
            tables=("adapter_init",),
            config=runs.params.config_json("run", "seed", runs=lambda config: sweeps.labels(runs)),
        ),


use rule torch_job as measure_baseline with:
    """Job: quality of a compared model, at one checkpoint"""
    input:
        checkpoint=runs.checkpoint_file,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
    output:
        quality="results/{run}/baselines/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_baseline_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_baseline_{iteration}.tsv"
    wildcard_constraints:
        run=runs.trained_pattern,
    resources:
        **runs.resources.torch_job("scaling"),
    params:
        **runs.params.measure(
            "twoscale.exits.evaluation.measure_fixed_loops",
            tables=("scaling_quality",),
            config=runs.params.config_json(
                *("seed", "device", "model"),
                scaling=sweeps.scaling,
                sequences=lambda config: config.sequences("scaling"),
            ),
        ),


use rule table_job as compare_baselines with:
    """Job: the looped model against those without loops, and the page baselines.md"""
    input:
        quality=lambda wildcards: sweeps.baseline_files(runs),
    output:
        baselines=TABLE.format("baselines"),
        page=SHOWN.format("baselines.md"),
    log:
        LOG.format("compare_baselines"),
    localrule: True
    params:
        **runs.params.call(
            "twoscale.studies.sweeps.draw.run_baselines",
            tables=("baselines",),
            config=runs.params.config_json(
                *("run", "seed"),
                compared=lambda config: sweeps.compared(runs),
                page=lambda config: sweeps.page(runs),
            ),
        ),
