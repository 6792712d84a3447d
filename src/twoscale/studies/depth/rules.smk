# Quality and geometry through the loops: the lens, quality at fixed loop counts, and the depth card (study.py).

from twoscale.figures.catalogue import inputs_from
from twoscale.studies.depth import study as depth


use rule torch_job as measure_lens with:
    """Job: predictions from the state after every loop step, at the last checkpoint"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
    output:
        lens="results/{run}/tables/lens.parquet",
    log:
        "results/{run}/logs/measure_lens.log",
    benchmark:
        "results/{run}/benchmarks/measure_lens.tsv"
    resources:
        **runs.resources.torch_job("lens"),
    params:
        **runs.params.measure(
            "twoscale.studies.depth.measure.run_lens",
            tables=("lens",),
            config=runs.params.config_json(
                *("run", "seed", "device", "model", "lens"),
                steps=depth.lens_steps,
                other_loops=lambda config: config.lens.other_loops or config.model.typical_loops,
                sequences=lambda config: config.sequences("lens"),
            ),
        ),


use rule torch_job as measure_scaling with:
    """Job: quality at fixed loop counts, at one checkpoint"""
    input:
        checkpoint=runs.checkpoint_file,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
    output:
        quality="results/{run}/scaling/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_scaling_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_scaling_{iteration}.tsv"
    resources:
        **runs.resources.torch_job("scaling"),
    params:
        **runs.params.measure(
            "twoscale.exits.evaluation.measure_fixed_loops",
            tables=("scaling_quality",),
            config=runs.params.config_json(
                *("seed", "device", "model", "scaling"),
                sequences=lambda config: config.sequences("scaling"),
            ),
        ),


use rule table_job as aggregate_scaling with:
    """Job: means of the quality at fixed loop counts, at all checkpoints"""
    input:
        quality=runs.at_checkpoints("results/{run}/scaling/iteration_{iteration}.parquet"),
    output:
        scaling="results/{run}/tables/scaling.parquet",
    log:
        "results/{run}/logs/aggregate_scaling.log",
    localrule: True
    params:
        **runs.params.call(
            "twoscale.claims.loop_counts.aggregate_scaling",
            tables=("scaling",),
            config=runs.params.config_json("run", "seed"),
        ),


use rule torch_job as measure_depth with:
    """Job: quality and geometry at multiples of the trained loops, at the last checkpoint"""
    input:
        checkpoint=runs.last_checkpoint,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
    output:
        quality="results/{run}/depth_card/quality.parquet",
        states="results/{run}/depth_card/states.parquet",
    log:
        "results/{run}/logs/measure_depth.log",
    benchmark:
        "results/{run}/benchmarks/measure_depth.tsv"
    resources:
        **runs.resources.torch_job("depth_card"),
    params:
        **runs.params.measure(
            "twoscale.studies.depth.measure.run_card",
            tables=("depth_quality", "depth_states"),
            config=runs.params.config_json(
                *("seed", "device", "model"),
                dtype=lambda config: config.depth_card.dtype,
                batch_size=lambda config: config.depth_card.batch_size,
                counts=depth.card_loops,
                sequences=lambda config: config.sequences("depth_card"),
            ),
        ),


use rule table_job as compare_depths with:
    """Job: the findings of the depth card, also against a run without loops"""
    input:
        quality="results/{run}/depth_card/quality.parquet",
        states="results/{run}/depth_card/states.parquet",
        unlooped=depth.unlooped_quality(runs),
        unlooped_text=depth.unlooped_text(runs),
        text=runs.data.data_file("tokens.json"),
    output:
        depth_card="results/{run}/tables/depth_card.parquet",
        depth_findings="results/{run}/tables/depth_findings.parquet",
    log:
        "results/{run}/logs/compare_depths.log",
    localrule: True
    params:
        **runs.params.call(
            "twoscale.studies.depth.draw.run_card",
            tables=("depth_card", "depth_findings"),
            config=runs.params.config_json(
                *("run", "seed"),
                trained_loops=depth.trained_loops,
                tolerance=lambda config: config.depth_card.tolerance,
                unlooped=lambda config: depth.unlooped_run(runs, config),
                unlooped_loops=lambda config: depth.unlooped_loops(runs, config),
            ),
        ),


use rule table_job as write_depth_card with:
    """Job: the page depth-card.md"""
    input:
        **runs.figures.page_inputs("depth_card", inputs_from(card="depth_card", findings="depth_findings")),
        picture="results/depth_card.svg",
    output:
        page=SHOWN.format("depth-card.md"),
    log:
        LOG.format("write_depth_card"),
    localrule: True
    params:
        **runs.params.call(
            "twoscale.studies.depth.draw.write_card",
            config=runs.params.config_json("run", identity=depth.identity),
        ),
