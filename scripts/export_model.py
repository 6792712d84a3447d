"""Rule export_model: a trained model as a folder that the transformers library loads."""

import json
from itertools import chain

import yaml

from twoscale import tables
from twoscale.claims.evidence import Evidence
from twoscale.config import PROJECT
from twoscale.data.shards import TokenMetadata, read_metadata
from twoscale.data.tokenizer import load_tokenizer
from twoscale.export.folder import card, write_export
from twoscale.jobs import command, machine


def main(arguments) -> None:
    config = arguments.config
    read_metadata(arguments.metadata, TokenMetadata)  # refuses a broken file
    files = dict(zip(tables.CLAIM_TABLES, arguments.evidence, strict=False))  # none without claims
    evidence = Evidence.read(files, max_loops=config.max_loops, seed=config.seed) if files else None
    environments = map(machine.recorded_environments, arguments.segments)
    findings = arguments.depth_findings
    readme = card(
        config,
        arguments.checkpoints,
        json.loads(arguments.metadata.read_text(encoding="utf-8")),
        tables.read("training", arguments.training),
        list(chain.from_iterable(environments)),
        yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8")),
        arguments.claims and tables.read("claims", arguments.claims),
        evidence,
        findings and tables.read("depth_findings", findings),
    )
    licence = (PROJECT / "LICENSE").read_text(encoding="utf-8")
    texts = {"README.md": readme, "LICENSE": licence}
    tokenizer = load_tokenizer(config.tokenizer.name, arguments.tokenizer)
    weights = arguments.checkpoints
    write_export(arguments.export, weights, tokenizer, arguments.tokenizer, config, texts)


if __name__ == "__main__":
    files = ("metadata", "training", "export")
    lists = ("checkpoints", "segments", "evidence")
    optional = ("tokenizer", "claims", "depth_findings")
    command.run(main, command.parser(__doc__, files, lists, optional=optional))
