# Published models, and from text to tokens. Held-out documents that share a long n-gram with the training text are
# dropped by join_tokens. A published model is not trained: its text has held-out documents only.
#
# in:  the source of data.source, and a hub repository of a model
# out: in resources/, which runs share: models/{model}/ (published models only), gpt2.tiktoken (tokenizer gpt2 only),
#      text/{dataset}/shard_*.parquet (text from a hub only);
#      data/text/shard_*.parquet (other text), data/tokenizer.json (tokenizer bpe only), data/{train,val}.bin,
#      data/tokens.json
#
# Only fetch_model, fetch_gpt2 and download_text use the network; they run where Snakemake runs, also on a cluster.


from dataclasses import asdict

from twoscale.base import canonical_json
from twoscale.config import plain, text_quota, text_source
from twoscale.workflow.data_files import trains


# Of models and tokenizer files; earlier versions kept them in results/, where they stay.
wildcard_constraints:
    place="resources|results",


rule text:
    """Target: everything that needs the network: downloads and text"""
    input:
        runs.data.downloads,


# The files of the weights, which only the manifest lists, are no outputs: Snakemake would delete those that a job has
# downloaded before it was interrupted.
rule fetch_model:
    """Job: download a published model"""
    output:
        description="{place}/models/{model}/config.json",
        tokenizer="{place}/models/{model}/tokenizer.json",
        manifest="{place}/models/{model}/published.json",
    log:
        "{place}/logs/fetch_model_{model}.log",
    wildcard_constraints:
        model=alternatives(runs.data.repositories),
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.script(
            "fetch_model",
            config=lambda wildcards: canonical_json(runs.data.repositories[wildcards.model]),
            # how a model is downloaded does not change it
            download=runs.params.config_json("download"),
        ),
    shell:
        JOB


rule fetch_gpt2:
    """Job: download GPT-2's tokenizer"""
    output:
        ranks="{place}/gpt2.tiktoken",
    log:
        "{place}/logs/fetch_gpt2.log",
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    params:
        **runs.params.script("fetch_gpt2", config=lambda wildcards: "{}"),
    shell:
        JOB


rule prepare_text:
    """Job: collect the text of a run, training and held out"""
    input:
        # counts text while it is collected; without it characters are counted
        tokenizer=lambda wildcards: (
            runs.data.tokenizer_file(wildcards) if runs.of(wildcards)[1].tokenizer.name == "gpt2" else []
        ),
    output:
        text=expand("results/{{run}}/data/text/{shard}.parquet", shard=runs.data.text_shards),
    log:
        "results/{run}/logs/prepare_text.log",
    benchmark:
        "results/{run}/benchmarks/prepare_text.tsv"
    localrule: True
    conda:
        "../../envs/analysis.yaml"
    threads: 4
    params:
        **runs.params.script(
            "prepare_text",
            config=runs.params.config_json(
                data=lambda config: plain(config.data),
                quota=lambda config: asdict(text_quota(config.data, config.tokenizer)),
            ),
            # the keys that do not shape the text at their defaults
            tracked=runs.params.config_json(
                data=lambda config: text_source(config.data),
                quota=lambda config: asdict(text_quota(config.data, config.tokenizer)),
            ),
            # how text is downloaded does not change the text
            download=runs.params.config_json("download"),
        ),
        parts=lambda wildcards, output: Path(output.text[0]).parents[1] / "parts",
        source=runs.params.source_digest,
        record=runs.params.record_source,
        tables=table_columns("text_part", "text"),
    shell:
        "{params.command} --job {params.job} --parts {params.parts:q} {params.files} > {log:q} 2>&1{params.record}"


# Texts of one data set share the folder of their parts, so that their jobs take turns.
use rule prepare_text as download_text with:
    """Job: download the text of a data set, which runs share"""
    output:
        text=expand("resources/text/{{dataset}}/{shard}.parquet", shard=runs.data.text_shards),
    log:
        "resources/text/{dataset}/download_text.log",
    benchmark:
        "resources/text/{dataset}/download_text.tsv"
    wildcard_constraints:
        dataset=alternatives(runs.data.datasets),
    localrule: True
    threads: 4 if len(runs.data.datasets) < 2 else max(4, workflow.cores or 1)


rule train_tokenizer:
    """Job: train a byte-pair tokenizer on the training text"""
    input:
        text=lambda wildcards: [runs.data.text_file(f"{shard}.parquet")(wildcards) for shard in runs.data.text_shards],
    output:
        tokenizer="results/{run}/data/tokenizer.json",
    log:
        "results/{run}/logs/train_tokenizer.log",
    benchmark:
        "results/{run}/benchmarks/train_tokenizer.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=per_attempt(4000),
        runtime=per_attempt(120),
    params:
        **runs.params.script("train_tokenizer", config=runs.params.config_json("tokenizer")),
    shell:
        JOB


rule tokenize_text:
    """Job: tokens of one shard of text"""
    input:
        runs.data.tokenizer_settings,
        text=runs.data.text_file("{shard}.parquet"),
        tokenizer=runs.data.tokenizer_file,
    output:
        train=temp("results/{run}/data/tokens/{shard}.train.bin"),
        val=temp("results/{run}/data/tokens/{shard}.val.bin"),
        metadata=temp("results/{run}/data/tokens/{shard}.json"),
    log:
        "results/{run}/logs/tokenize_text_{shard}.log",
    benchmark:
        "results/{run}/benchmarks/tokenize_text.{shard}.tsv"
    conda:
        "../../envs/analysis.yaml"
    resources:
        mem_mb=per_attempt(1000),
        runtime=per_attempt(240),
    params:
        **runs.params.script(
            "tokenize_text",
            config=runs.params.config_json(
                tokenizer=lambda config: config.tokenizer.name,
                num_ids=lambda config: config.tokenizer.num_ids,
            ),
        ),
    shell:
        JOB


rule join_tokens:
    """Job: join the tokens of all shards; drop held-out documents that quote the training text"""
    input:
        trains=expand("results/{{run}}/data/tokens/{shard}.train.bin", shard=runs.data.text_shards),
        vals=expand("results/{{run}}/data/tokens/{shard}.val.bin", shard=runs.data.text_shards),
        metadata_files=expand("results/{{run}}/data/tokens/{shard}.json", shard=runs.data.text_shards),
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
        **runs.params.script(
            "join_tokens",
            config=runs.params.config_json(
                held_out_tokens=lambda config: config.data.held_out_tokens,
                near_duplicate_tokens=lambda config: config.data.near_duplicate_tokens,
                context_length=lambda config: config.model.context_length if trains(config) else None,
            ),
        ),
    shell:
        JOB
