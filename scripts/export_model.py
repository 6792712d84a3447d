"""Rule export_model: a trained model as a folder that the transformers library loads."""

import json

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
    readme = card(
        config,
        arguments.checkpoints,
        json.loads(arguments.metadata.read_text(encoding="utf-8")),
        tables.read("training", arguments.training),
        [
            entry
            for segment in arguments.segments
            for entry in machine.recorded_environments(segment)
        ],
        yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8")),
        arguments.claims and tables.read("claims", arguments.claims),
        evidence,
    )
    texts = {"README.md": readme, "LICENSE": (PROJECT / "LICENSE").read_text(encoding="utf-8")}
    tokenizer = load_tokenizer(config.tokenizer.name, arguments.tokenizer)
    write_export(
        arguments.export, arguments.checkpoints, tokenizer, arguments.tokenizer, config, texts
    )


if __name__ == "__main__":
    files = ("metadata", "training", "export")
    lists = ("checkpoints", "segments", "evidence")
    command.run(main, command.parser(__doc__, files, lists, optional=("tokenizer", "claims")))
