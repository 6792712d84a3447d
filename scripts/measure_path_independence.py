"""Rule measure_path_independence: the same held-out text from several draws of the noise, at one checkpoint."""

from pathlib import Path

import torch

from twoscale import command
from twoscale.dynamics import independence
from twoscale.config import sections
from twoscale.data import tokens
from twoscale.data.batches import held_out_sequences
from twoscale.model.checkpoints import load_model


def main(arguments) -> None:
    torch.set_num_threads(1)  # Snakemake runs checkpoints side by side
    model_settings = sections.Model(**arguments.settings["model"])
    chosen = sections.Trajectories(**arguments.settings["trajectories"])
    varied = sections.PathIndependence(**arguments.settings["path_independence"])
    model, header = load_model(
        arguments.checkpoint, model_settings, getattr(torch, chosen.dtype), arguments.settings["device"]
    )
    shard = tokens.open_shard(arguments.val, arguments.sidecar)
    blocks, _ = held_out_sequences(shard, model_settings.block, max(1, varied.tokens // model_settings.block))
    seed = arguments.settings["seed"]
    independence.measure(model, blocks, header.step, seed, chosen, varied.draws, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--sidecar", type=Path, required=True, help="tokens.json of the shard")
    parser.add_argument("--output", type=Path, required=True, help="output: one row per token, group and draw")
    command.run(main, parser)
