"""Rule measure_path_independence: the same held-out text from several draws of the noise, at one checkpoint."""

from pathlib import Path

import torch

from twoscale import command
from twoscale.dynamics import independence
from twoscale import config
from twoscale.data import tokens
from twoscale.data.batches import held_out_sequences
from twoscale.model.checkpoints import load_model


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    model_config = config.ModelConfig(**arguments.config["model"])
    chosen = config.TrajectoriesConfig(**arguments.config["trajectories"])
    varied = config.PathIndependenceConfig(**arguments.config["path_independence"])
    model, header = load_model(
        arguments.checkpoint, model_config, getattr(torch, chosen.dtype), arguments.config["device"]
    )
    shard = tokens.open_shard(arguments.val, arguments.metadata)
    blocks, _ = held_out_sequences(shard, model_config.context_length, max(1, varied.tokens // model_config.context_length))
    seed = arguments.config["seed"]
    independence.measure(model, blocks, header.iteration, seed, chosen, varied.draws, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json of the shard")
    parser.add_argument("--output", type=Path, required=True, help="output: one row per token, group and draw")
    command.run(main, parser)
