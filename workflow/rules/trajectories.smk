# The path of held-out tokens through the loops, at every checkpoint.
#
# in:  a checkpoint, data/val.bin
# out: trajectories/step_*.parquet, paths/step_*.parquet, drift/step_*.parquet; states.safetensors of the last checkpoint


rule extract_trajectories:
    input:
        checkpoint="results/{run}/checkpoints/iteration_{iteration}.safetensors",
        val=data_file("val.bin"),
        metadata=data_file("tokens.json"),
    output:
        trajectories="results/{run}/trajectories/iteration_{iteration}.parquet",
        paths="results/{run}/paths/iteration_{iteration}.parquet",
        drift="results/{run}/drift/iteration_{iteration}.parquet",
    log:
        "results/{run}/logs/extract_trajectories_{iteration}.log",
    benchmark:
        "results/{run}/benchmarks/extract_trajectories_{iteration}.tsv"
    group:
        "analyses_{run}_{iteration}"
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=growing(8000),
        runtime=growing(60),
        gpu=gpus,
        gpu_slot=gpus,
    params:
        config=config_json(
            seed=seed,
            device=device,
            model=section("model"),
            trajectories=section("trajectories"),
            path_types=section("path_types"),
        ),
        tables=written("trajectories", "token_paths", "token_drift"),
        launch=launch_alone,
        code=code("extract_trajectories"),
    shell:
        "{params.launch} scripts/extract_trajectories.py --config {params.config:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --metadata {input.metadata:q}"
        " --trajectories {output.trajectories:q} --paths {output.paths:q} --drift {output.drift:q} > {log:q} 2>&1"


rule extract_states:
    input:
        checkpoint=last_checkpoint,
        val=data_file("val.bin"),
        metadata=data_file("tokens.json"),
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
        config=config_json(
            seed=seed,
            device=device,
            model=section("model"),
            trajectories=section("trajectories"),
            tokenizer=lambda run, settings: settings.tokenizer.name,
        ),
        tokenizer=tokenizer_option,
        launch=launch_alone,
        code=code("extract_states"),
    shell:
        "{params.launch} scripts/extract_states.py --config {params.config:q} --checkpoint {input.checkpoint:q}"
        " --val {input.val:q} --metadata {input.metadata:q} {params.tokenizer} --states {output:q} > {log:q} 2>&1"
