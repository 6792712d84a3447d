"""Rule benchmark_pareto: the exit benchmark on a dense grid, and the uniform-budget reference beside it."""

from pathlib import Path

import pandas as pd
import torch

from twoscale import command, tables
from twoscale import config
from twoscale.data import tokens
from twoscale.model.checkpoints import load_model
from twoscale.exits.benchmark import held_out_text, measure_latency, measure_quality
from twoscale.exits.scaling import measure_uniform_loops


def main(arguments) -> None:
    model_config = config.ModelConfig(**arguments.config["model"])
    exits = config.ExitsConfig(**arguments.config["exits"])
    torch.set_num_threads(arguments.threads)
    seed, run = arguments.config["seed"], arguments.config["run"]
    model, _ = load_model(
        arguments.checkpoint, model_config, getattr(torch, exits.dtype), arguments.config["device"]
    )
    shard = tokens.open_shard(arguments.val, arguments.metadata)
    text, prompts = held_out_text(shard, model_config.context_length, exits)

    reference = pd.DataFrame(measure_uniform_loops(model, *text, exits, seed, run))
    quality = pd.DataFrame(measure_quality(model, *text, exits, seed, run))
    torch.set_num_threads(1)
    latency = pd.DataFrame(measure_latency(model, prompts, exits, seed, run))
    tables.write("uniform_loops", reference, arguments.reference)
    tables.write("exit_quality", quality, arguments.quality, model_config.group_labels)
    tables.write("exit_latency", latency, arguments.latency, model_config.group_labels)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json of the shard")
    parser.add_argument("--threads", type=int, required=True, help="torch threads for quality; latency takes one")
    parser.add_argument("--quality", type=Path, required=True, help="output: table exit_quality on the dense grid")
    parser.add_argument("--latency", type=Path, required=True, help="output: table exit_latency on the dense grid")
    parser.add_argument("--reference", type=Path, required=True, help="output: table uniform_loops")
    command.run(main, parser)
