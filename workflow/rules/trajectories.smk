# The path of held-out tokens through the loops, at every checkpoint.
#
# in:  a checkpoint, data/val.bin
# out: trajectories/step_*.parquet, paths/step_*.parquet, drift/step_*.parquet; states.safetensors of the last checkpoint


rule extract_trajectories:
    input:
        checkpoint="results/{run}/checkpoints/step_{step}.safetensors",
        val=data_file("val.bin"),
        sidecar=data_file("tokens.json"),
    output:
        trajectories="results/{run}/trajectories/step_{step}.parquet",
        paths="results/{run}/paths/step_{step}.parquet",
        drift="results/{run}/drift/step_{step}.parquet",
    log:
        "results/{run}/logs/extract_trajectories_{step}.log",
    benchmark:
        "results/{run}/benchmarks/extract_trajectories_{step}.tsv"
    group:
        "analyses_{run}_{step}"
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
        gpu=gpus,
        gpu_slot=gpus,
    params:
        settings=settings_json(
            seed=seed,
            device=device,
            model=section("model"),
            trajectories=section("trajectories"),
            kinds=section("kinds"),
        ),
        tables=written("trajectories", "token_paths", "token_drift"),
        launch=launch_alone,
        code=code("extract_trajectories"),
    shell:
        "{params.launch} scripts/extract_trajectories.py --settings {params.settings:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --sidecar {input.sidecar:q}"
        " --trajectories {output.trajectories:q} --paths {output.paths:q} --drift {output.drift:q} > {log:q} 2>&1"


rule extract_states:
    input:
        checkpoint=last_checkpoint,
        val=data_file("val.bin"),
        sidecar=data_file("tokens.json"),
        tokenizer=tokenizer_file,
    output:
        "results/{run}/states.safetensors",
    log:
        "results/{run}/logs/extract_states.log",
    benchmark:
        "results/{run}/benchmarks/extract_states.tsv"
    group:
        last_analyses
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=growing(8000),
        runtime=growing(30),
        gpu=gpus,
        gpu_slot=gpus,
    params:
        settings=settings_json(
            seed=seed,
            device=device,
            model=section("model"),
            trajectories=section("trajectories"),
            tokenizer=lambda run, settings: settings.tokens.tokenizer,
        ),
        tokenizer=tokenizer_option,
        launch=launch_alone,
        code=code("extract_states"),
    shell:
        "{params.launch} scripts/extract_states.py --settings {params.settings:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --sidecar {input.sidecar:q} {params.tokenizer} --states {output:q} > {log:q} 2>&1"
