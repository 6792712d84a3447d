"""Rule extract_trajectories: the loops of one checkpoint on held-out text, token by token."""

from pathlib import Path

import torch

from twoscale import command
from twoscale import config
from twoscale.data import tokens
from twoscale.data.batches import held_out_sequences
from twoscale.model.checkpoints import load_model
from twoscale.dynamics.trajectories import TABLES, extract


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    model_config = config.ModelConfig(**arguments.config["model"])
    chosen = config.TrajectoriesConfig(**arguments.config["trajectories"])
    criteria = config.PathTypesConfig(**arguments.config["path_types"])
    model, header = load_model(
        arguments.checkpoint, model_config, getattr(torch, chosen.dtype), arguments.config["device"]
    )
    count = max(1, chosen.tokens // model_config.context_length)
    shard = tokens.open_shard(arguments.val, arguments.metadata)
    blocks, _ = held_out_sequences(shard, model_config.context_length, count)
    outputs = dict(zip(TABLES, (arguments.trajectories, arguments.paths, arguments.drift), strict=True))
    extract(model, blocks, header.iteration, arguments.config["seed"], chosen, criteria, outputs)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json of the shard")
    parser.add_argument("--trajectories", type=Path, required=True, help="output: one row per token, group and step")
    parser.add_argument("--paths", type=Path, required=True, help="output: one row per token and group")
    parser.add_argument("--drift", type=Path, required=True, help="output: one row per token, boundary and reading")
    command.run(main, parser)
