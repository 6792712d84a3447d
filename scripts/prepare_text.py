"""Rule prepare_text: collect documents from data.source into parquet shards, going on where it was cut."""

import json
from functools import partial
from pathlib import Path

from twoscale import command
from twoscale.data.ingestion import lengths, prepare_text
from twoscale.config import TextQuota, DataConfig, DownloadConfig
from twoscale.data.tokens import count_tokens, gpt2


def main(arguments) -> None:
    budget = TextQuota(**arguments.config["budget"])
    sizes = partial(count_tokens, gpt2(arguments.tokenizer)) if budget.unit == "tokens" else lengths
    data, download = DataConfig(**arguments.config["data"]), DownloadConfig(**arguments.download)
    prepare_text(data, budget, arguments.output, arguments.parts, download, sizes)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--download", type=json.loads, required=True, help="how to download, as JSON")
    parser.add_argument("--tokenizer", type=Path, help="GPT-2's tokenizer, for a budget in tokens")
    parser.add_argument("--parts", type=Path, required=True, help="folder of what is complete")
    parser.add_argument("--output", type=Path, nargs="+", required=True, help="parquet shards to write")
    command.run(main, parser)
