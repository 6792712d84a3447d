"""Rule train_segment: train from one checkpoint to the next."""

import json
from pathlib import Path

import torch

from twoscale.model import checkpoints
from twoscale import command, tables
from twoscale.training import processes
from twoscale import config
from twoscale.data import tokens
from twoscale.data.batches import held_out_sequences
from twoscale.training.trainer import Trainer, load_partial, restore, run_segment, tensors_of


def main(arguments) -> None:
    chosen = arguments.config
    model = config.ModelConfig(**chosen["model"])
    train = config.TrainConfig(**chosen["train"], **arguments.runtime)
    device = chosen["device"]
    identity = chosen | {"data": json.loads(arguments.metadata.read_text())["digest"]}
    torch.set_num_threads(train.cpu_threads)
    world = processes.init_distributed(device)

    weights, header = checkpoints.load(arguments.start[0], "weights", identity, device)
    moments = checkpoints.load(arguments.start[1], "optimizer", identity, device)[0] if header.iteration else {}
    start = (weights, moments, header)
    resumed = load_partial(arguments.partial, header.iteration, arguments.until, identity, device)
    state = restore(model, train, device, *(resumed or start))

    held_out = held_out_sequences(
        tokens.open_shard(arguments.val, arguments.metadata), model.context_length, train.held_out_sequences
    )
    shard = tokens.open_shard(arguments.train, arguments.metadata)
    trainer = Trainer(chosen["seed"], device, model, train, shard, held_out, world)
    run_segment(trainer, state, arguments.until, arguments.partial, identity)
    if world.is_main:
        write(state, identity, model, arguments)
    processes.destroy_distributed(world)


def write(state, identity, model, arguments) -> None:
    """The outputs of the segment; the partial state goes last."""
    weights, moments = tensors_of(state)
    log = {name: [row[name] for row in state.log] for name in state.log[0]}
    with tables.writing("training", arguments.log, model.group_labels) as append:
        append(log)
    for path, kind, tensors in (
        (arguments.optimizer, "optimizer", moments),
        (arguments.checkpoint, "weights", weights),
    ):
        checkpoints.save(path, tensors, checkpoints.Header(kind, state.iteration, state.tokens_seen, identity, {}))
    arguments.partial.unlink(missing_ok=True)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--runtime", type=json.loads, required=True, help="how the run is cut, watched and spread")
    parser.add_argument("--train", type=Path, required=True, help="token shard to train on")
    parser.add_argument("--val", type=Path, required=True, help="held-out token shard")
    parser.add_argument("--metadata", type=Path, required=True, help="tokens.json of both shards")
    parser.add_argument(
        "--start",
        type=Path,
        nargs="+",
        required=True,
        help="checkpoint to start from; beyond step 0 its optimizer state",
    )
    parser.add_argument("--until", type=int, required=True, help="step to stop at")
    parser.add_argument("--partial", type=Path, required=True, help="file for the state of an unfinished segment")
    parser.add_argument("--checkpoint", type=Path, required=True, help="output: weights")
    parser.add_argument("--optimizer", type=Path, required=True, help="output: optimizer state")
    parser.add_argument("--log", type=Path, required=True, help="output: one row an iteration")
    command.run(main, parser)
