# From text to tokens.
#
# in:  the source of data.source
# out: gpt2.tiktoken (tokenizer gpt2 only), data/text/shard_*.parquet, data/tokenizer.json (own BPE only),
#      data/{train,val}.bin, data/tokens.json
#
# Only fetch_gpt2 and prepare_text use the network; they run where Snakemake runs, also on a cluster.

TEXT_SHARDS = [f"shard_{number:03d}" for number in range(RUNS[RUN].data.text_shards)]


rule text:
    input:
        [needed for run in RUNS for needed in text_of(run)],


rule fetch_gpt2:
    output:
        "results/gpt2.tiktoken",
    log:
        "results/logs/fetch_gpt2.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        download=download,
        code=code("fetch_gpt2"),
    shell:
        "python scripts/fetch_gpt2.py --config {params.download:q} --output {output:q} > {log:q} 2>&1"


rule prepare_text:
    input:
        tokenizer=counting_tokenizer,
    output:
        expand("results/{{run}}/data/text/{shard}.parquet", shard=TEXT_SHARDS),
    log:
        "results/{run}/logs/prepare_text.log",
    benchmark:
        "results/{run}/benchmarks/prepare_text.tsv"
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    threads: 4
    params:
        config=config_json(data=text_source, budget=text_budget),
        download=download,
        tokenizer=tokenizer_option,
        parts=lambda wildcards, output: Path(output[0]).parents[1] / "parts",
        tables=written("text_part", "text"),
        code=code("prepare_text"),
    shell:
        "python scripts/prepare_text.py --config {params.config:q} --download {params.download:q}"
        " {params.tokenizer} --parts {params.parts:q} --output {output:q} > {log:q} 2>&1"


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
        config=config_json(tokens=section("tokens")),
        code=code("train_tokenizer"),
    shell:
        "python scripts/train_tokenizer.py --config {params.config:q} --text {input.text:q} --output {output:q}"
        " > {log:q} 2>&1"


rule tokenize_text:
    input:
        text=data_file("text/{shard}.parquet"),
        tokenizer=tokenizer_file,
    output:
        train=temp("results/{run}/data/tokens/{shard}.train.bin"),
        val=temp("results/{run}/data/tokens/{shard}.val.bin"),
        metadata=temp("results/{run}/data/tokens/{shard}.json"),
    log:
        "results/{run}/logs/tokenize_text_{shard}.log",
    benchmark:
        "results/{run}/benchmarks/tokenize_text_{shard}.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=growing(1000),
        runtime=growing(240),
    params:
        config=config_json(tokenizer=tokenizer_name),
        tokenizer=tokenizer_option,
        code=code("tokenize_text"),
    shell:
        "python scripts/tokenize_text.py --config {params.config:q} --text {input.text:q} {params.tokenizer}"
        " --train {output.train:q} --val {output.val:q} --metadata {output.metadata:q} > {log:q} 2>&1"


rule join_tokens:
    input:
        train=expand("results/{{run}}/data/tokens/{shard}.train.bin", shard=TEXT_SHARDS),
        val=expand("results/{{run}}/data/tokens/{shard}.val.bin", shard=TEXT_SHARDS),
        metadata=expand("results/{{run}}/data/tokens/{shard}.json", shard=TEXT_SHARDS),
    output:
        train="results/{run}/data/train.bin",
        val="results/{run}/data/val.bin",
        metadata="results/{run}/data/tokens.json",
    log:
        "results/{run}/logs/join_tokens.log",
    benchmark:
        "results/{run}/benchmarks/join_tokens.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=1000,
        runtime=60,
    params:
        config=config_json(held_out=held_out_tokens, block=block),
        code=code("join_tokens"),
    shell:
        "python scripts/join_tokens.py --config {params.config:q} --trains {input.train:q} --vals {input.val:q}"
        " --metadata_files {input.metadata:q} --train {output.train:q} --val {output.val:q} --metadata {output.metadata:q}"
        " > {log:q} 2>&1"
