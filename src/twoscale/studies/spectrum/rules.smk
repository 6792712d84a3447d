# Eigenvalues of loop steps at their fixed points against paths (study.py).

from twoscale.studies.spectrum import study as spectrum


use rule torch_job as measure_spectrum with:
    """Job: trajectories to their fixed points, and eigenvalues there, at one checkpoint"""
    input:
        checkpoint=runs.checkpoint_file,
        val=runs.data.data_file("val.bin"),
        metadata=runs.data.data_file("tokens.json"),
        model=runs.data.model_files,
    output:
        spectrum="results/{run}/spectrum/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/measure_spectrum_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/measure_spectrum_{iteration}.tsv"
    resources:
        **runs.resources.torch_job("spectrum", minutes=120),
    params:
        **runs.params.measure(
            "twoscale.studies.spectrum.measure.run",
            tables=("token_spectrum",),
            config=runs.params.config_json(
                *("seed", "device", "model", "spectrum"),
                loops=lambda config: config.trajectories.loops,
                sequences=lambda config: config.sequences("spectrum"),
                exact_sequences=lambda config: config.spectrum.exact_sequences(config),
            ),
        ),


use rule table_job as aggregate_spectrum with:
    """Job: agreement of the predictions of the spectrum with the paths"""
    input:
        tokens=spectrum.at_checkpoints(runs, "results/{run}/spectrum/iteration_{iteration}.parquet"),
    output:
        token_spectrum="results/{run}/tables/token_spectrum.parquet",
        spectrum="results/{run}/tables/spectrum.parquet",
    log:
        "results/{run}/logs/aggregate_spectrum.log",
    localrule: True
    params:
        **runs.params.call(
            "twoscale.studies.spectrum.draw.run",
            tables=("token_spectrum", "spectrum"),
            config=runs.params.config_json("run", "seed"),
        ),
