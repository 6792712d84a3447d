"""Rule scaling_quality: cross-entropy and perplexity of one checkpoint at fixed loop counts."""

from pathlib import Path

import pandas as pd
import torch

from twoscale import command, tables
from twoscale import config
from twoscale.data import tokens
from twoscale.data.batches import held_out_sequences
from twoscale.model.checkpoints import load_model
from twoscale.exits.scaling import measure_scaling


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    model_config = config.ModelConfig(**arguments.config["model"])
    chosen = config.ScalingConfig(**arguments.config["scaling"])
    model, header = load_model(
        arguments.checkpoint, model_config, getattr(torch, chosen.dtype), arguments.config["device"]
    )
    shard = tokens.open_shard(arguments.val, arguments.metadata)
    blocks = held_out_sequences(shard, model_config.context_length, max(1, chosen.tokens // model_config.context_length))
    seed = arguments.config["seed"]
    rows = measure_scaling(model, *blocks, chosen.loops, chosen.batch, seed, header.iteration)
    tables.write("scaling_quality", pd.DataFrame(rows), arguments.quality)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json of the shard")
    parser.add_argument("--quality", type=Path, required=True, help="output: CE and PPL per loop count and sequence")
    command.run(main, parser)
