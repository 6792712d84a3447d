# From text to tokens.
#
# in:  the source of data.source
# out: data/text/shard_*.parquet, data/tokenizer.json (own BPE only), data/{train,val}.bin, data/tokens.json

TEXT_SHARDS = [f"shard_{number:03d}" for number in range(RUNS[RUN].data.text_shards)]


rule prepare_text:
    output:
        expand("results/{{run}}/data/text/{shard}.parquet", shard=TEXT_SHARDS),
    log:
        "results/{run}/logs/prepare_text.log",
    benchmark:
        "results/{run}/benchmarks/prepare_text.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=growing(2000),
        runtime=growing(600),
    params:
        settings=settings_json(data=section("data")),
        tables=written("text"),
        code=code("prepare_text"),
    shell:
        "python scripts/prepare_text.py --settings {params.settings:q} --output {output:q} > {log:q} 2>&1"


rule train_tokenizer:
    input:
        text=text_shards,
    output:
        "results/{run}/data/tokenizer.json",
    log:
        "results/{run}/logs/train_tokenizer.log",
    benchmark:
        "results/{run}/benchmarks/train_tokenizer.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=growing(4000),
        runtime=growing(120),
    params:
        settings=settings_json(tokens=section("tokens")),
        code=code("train_tokenizer"),
    shell:
        "python scripts/train_tokenizer.py --settings {params.settings:q} --text {input.text:q} --output {output:q}"
        " > {log:q} 2>&1"


rule tokenize_text:
    input:
        text=text_shards,
        tokenizer=tokenizer_file,
    output:
        train="results/{run}/data/train.bin",
        val="results/{run}/data/val.bin",
        sidecar="results/{run}/data/tokens.json",
    log:
        "results/{run}/logs/tokenize_text.log",
    benchmark:
        "results/{run}/benchmarks/tokenize_text.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=growing(2000),
        runtime=growing(240),
    params:
        settings=settings_json(tokens=section("tokens"), block=block),
        tokenizer=tokenizer_option,
        code=code("tokenize_text"),
    shell:
        "python scripts/tokenize_text.py --settings {params.settings:q} --text {input.text:q} {params.tokenizer}"
        " --train {output.train:q} --val {output.val:q} --sidecar {output.sidecar:q} > {log:q} 2>&1"
