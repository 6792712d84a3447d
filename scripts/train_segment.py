"""Rule train_segment: train from one checkpoint to the next."""

import json
from pathlib import Path

import torch

from twoscale import command
from twoscale.config import ConfigSlice
from twoscale.data.batches import open_held_out
from twoscale.data.shards import open_shard
from twoscale.training.trainer import SegmentPaths, TrainingData, train_segment


def main(arguments) -> None:
    identity = arguments.config
    config = ConfigSlice(identity | {"train": identity["train"] | arguments.runtime})
    torch.set_num_threads(config.train.cpu_threads)
    held_out = open_held_out(
        arguments.val, arguments.metadata, config.model.context_length, config.train.held_out_sequences
    )
    data = TrainingData(open_shard(arguments.train, arguments.metadata), held_out)
    paths = SegmentPaths(*(getattr(arguments, name) for name in SegmentPaths.__dataclass_fields__))
    digest = json.loads(arguments.metadata.read_text())["digest"]
    train_segment(config, data, arguments.until, paths, identity | {"data": digest})


if __name__ == "__main__":
    parser = command.parser(
        __doc__,
        files=("train", "val", "metadata", "checkpoint", "optimizer", "log", "loops"),
        lists=("start",),
        config=json.loads,
    )
    parser.add_argument("--runtime", type=json.loads, required=True, help="runtime keys of `train`, as JSON")
    parser.add_argument("--until", type=int, required=True, help="iteration to stop at")
    parser.add_argument("--partial", type=Path, required=True, help="file for the state of an unfinished segment")
    command.run(main, parser)
