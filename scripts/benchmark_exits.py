"""Rule benchmark_exits: quality and latency of every exit rule on the last checkpoint."""

from pathlib import Path

import pandas as pd
import torch

from twoscale import command, tables
from twoscale import config
from twoscale.data import tokens
from twoscale.model.checkpoints import load_model
from twoscale.exits.benchmark import held_out_text, measure_check_cost, measure_latency, measure_quality


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

    quality = pd.DataFrame(measure_quality(model, *text, exits, seed, run))
    torch.set_num_threads(1)
    latency = pd.DataFrame(measure_latency(model, prompts, exits, seed, run))
    checks = measure_check_cost(model, prompts, exits, seed, run)
    check_columns = list(tables.columns("check_cost"))
    tables.write("check_cost", pd.DataFrame(checks, columns=check_columns), arguments.checks)
    tables.write("exit_quality", quality, arguments.quality, model_config.group_labels)
    tables.write("exit_latency", latency, arguments.latency, model_config.group_labels)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json of the shard")
    parser.add_argument("--threads", type=int, required=True, help="torch threads for quality; latency takes one")
    parser.add_argument("--quality", type=Path, required=True, help="output: CE and PPL per sequence")
    parser.add_argument("--latency", type=Path, required=True, help="output: ms per token per repeat")
    parser.add_argument("--checks", type=Path, required=True, help="output: ms of a KL decision and of a loop step")
    command.run(main, parser)
