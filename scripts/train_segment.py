"""Rule train_segment: train from one checkpoint to the next."""

import json
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
    version = arguments.result_cache.version if arguments.result_cache else ""
    train_segment(
        config, data, Segment(arguments.until, identity, run=arguments.run, version=version), paths
    )


if __name__ == "__main__":
    parser = command.parser(
        __doc__,
        files=("train", "val", "metadata", "checkpoint", "optimizer", "log", "loops"),
        lists=("start",),
        config=json.loads,
    )
    parser.add_argument(
        "--runtime", type=json.loads, required=True, help="runtime keys of `train`, as JSON"
    )
    parser.add_argument("--run", required=True, help="name of the run in messages")
    parser.add_argument("--until", type=int, required=True, help="iteration to stop at")
    parser.add_argument(
        "--partial", type=Path, required=True, help="file for the state of an unfinished segment"
    )
    command.run(main, parser)
