"""Rule extract_states: every hidden state of one held-out sequence, for Fig. 1."""

from pathlib import Path

import torch

from twoscale import command
from twoscale import config
from twoscale.data import tokens
from twoscale.data.batches import held_out_sequences
from twoscale.model.checkpoints import load_model
from twoscale.dynamics.trajectories import save_states


def main(arguments) -> None:
    torch.set_num_threads(1)
    model_config = config.ModelConfig(**arguments.config["model"])
    chosen = config.TrajectoriesConfig(**arguments.config["trajectories"])
    model, header = load_model(
        arguments.checkpoint, model_config, getattr(torch, chosen.dtype), arguments.config["device"]
    )
    shard = tokens.open_shard(arguments.val, arguments.metadata)
    blocks, _ = held_out_sequences(shard, model_config.context_length, chosen.states_sequence + 1)
    block = blocks[chosen.states_sequence]
    tokenizer = tokens.load_tokenizer(arguments.config["tokenizer"], arguments.tokenizer)
    words = [tokenizer.decode([token]) for token in block.tolist()]
    save_states(model, block, words, header.iteration, arguments.config["seed"], chosen, arguments.states)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json of the shard")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, for tokenizer.name: bpe")
    parser.add_argument("--states", type=Path, required=True, help="output")
    command.run(main, parser)
