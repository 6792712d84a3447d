# The model of the selected run as a folder that the transformers library loads, with a model card (docs/release.md).
#
# in:  all checkpoints, the tokenizer, tables/{training,claims}.parquet, the tables that claims are judged on,
#      and the findings of the depth card if it was measured
# out: results/{run}/export

from twoscale.base import json_digest
from twoscale.export import check_exported, code_files
from twoscale.tables import CLAIM_TABLES


rule export_model:
    """Job: write the trained model as a folder for the transformers library"""
    input:
        # InputError for a model that cannot be exported; otherwise all checkpoints of the run, the last one last
        checkpoints=lambda wildcards: check_exported(runs.selected, runs.config.model)
        or runs.at_checkpoints(CHECKPOINT)(wildcards),
        metadata=runs.data.data_file("tokens.json"),
        tokenizer=runs.data.tokenizer_file,
        training=TABLE.format("training"),
        segments=runs.at_checkpoints("results/{run}/training/iteration_{iteration}.parquet", untrained=False),
        claims=[TABLE.format("claims")] if runs.figures.claims else [],
        evidence=[TABLE.format(table) for table in CLAIM_TABLES.values()] if runs.figures.claims else [],
        depth_findings=lambda wildcards: runs.figures.reported_inputs("depth_findings"),
    output:
        export=directory(f"results/{runs.selected}/export"),
    log:
        LOG.format("export_model"),
    conda:
        "../../envs/torch.yaml"
    resources:
        mem_mb=per_attempt(8000),
        runtime=30,
    params:
        **runs.params.script(
            "export_model",
            config=runs.params.config_json(
                *("run", "seed", "model", "data", "tokenizer", "train"),
                max_loops=lambda config: config.exits.max_loops,
            ),
        ),
        # the text of the code that the folder contains
        modeling=lambda wildcards: json_digest(code_files()),
    shell:
        JOB


rule export:
    """Target: the trained model as a folder for the transformers library, results/{run}/export"""
    input:
        rules.export_model.output,
