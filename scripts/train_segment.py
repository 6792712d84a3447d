"""Rule train_segment: train from one checkpoint to the next."""

import json
from functools import partial
from pathlib import Path

import torch

from twoscale.config import ConfigSlice
from twoscale.data.shards import TokenMetadata, TokenShard, read_metadata
from twoscale.jobs import command
from twoscale.training.state import Segment, SegmentPaths
from twoscale.training.trainer import TrainingData, train_segment


def main(arguments) -> None:
    identity = arguments.config
    config = ConfigSlice(identity | {"train": identity["train"] | arguments.runtime})
    torch.set_num_threads(config.train.cpu_threads)
    data = TrainingData.open(TokenShard(arguments.train, arguments.val, arguments.metadata), config)
    paths = SegmentPaths(*(getattr(arguments, name) for name in SegmentPaths.__dataclass_fields__))
    identity = identity | {"data": read_metadata(arguments.metadata, TokenMetadata).digest}
    segment = Segment(arguments.until, identity, run=arguments.run, code=arguments.code)
    train_segment(config, data, segment, paths)


if __name__ == "__main__":
    parser = command.parser(
        __doc__,
        files=("train", "val", "metadata", "checkpoint", "optimizer", "log", "loops"),
        lists=("start",),
        config=json.loads,
    )
    add = partial(parser.add_argument, required=True)
    add("--runtime", type=json.loads, help="runtime keys of `train`, as JSON")
    add("--run", help="name of the run in messages")
    add("--code", help="fingerprint of the code, to which unfinished segments are bound")
    add("--until", type=int, help="iteration to stop at")
    add("--partial", type=Path, help="file for the state of an unfinished segment")
    command.run(main, parser)
