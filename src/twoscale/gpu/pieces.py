"""A training run in pieces of time, without Snakemake, with the files that the workflow writes.

The segments are those of rule train_segment, with the same function, files, identities and version of the code. So the
workflow continues what was trained here, and the other way round.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from twoscale.config import ConfigSlice, runtime, training_identity
from twoscale.data.token_files import TokenShard, read_digest
from twoscale.errors import InputError
from twoscale.machine import check_cuda
from twoscale.model.checkpoints import save_untrained
from twoscale.training.trainer import Segment, SegmentPaths, TrainingData, train_segment
from twoscale.workflow import Runs

SCRIPTS = Path(__file__).parents[3] / "scripts"


def train_run(user_config: Mapping[str, Any], seconds: float) -> str:
    """Train the selected run of a config for `seconds` from its last state; a sentence on it.

    Args:
        user_config: Keys over those of a preset, by default "paper", as Snakemake merges them.
        seconds: Time after which the state is saved.

    Raises:
        InputError: if tokens are missing, the run trains on a device that is not here, or in several processes.
    """
    stop_at = time.monotonic() + seconds
    runs = Runs({"preset": "paper"} | dict(user_config), SCRIPTS)
    train, device = runs.config.train, runs.config.compute.device
    if train.processes > 1:
        raise InputError(f"config key train.processes: found {train.processes}, expected 1 for training in pieces.")
    if device == "cuda":
        check_cuda("config key compute.device")
    torch.set_num_threads(train.cpu_threads)
    reached = _train(runs, stop_at)
    if reached == train.iterations:
        return f"results/{runs.selected}: all {train.iterations} iterations are trained."
    return (
        f"results/{runs.selected}: iteration {reached} of {train.iterations} is saved; the same command continues "
        "from it."
    )


def _train(runs: Runs, stop_at: float) -> int:
    """Train the segments that have no checkpoint yet, in order; the iteration that was reached."""
    run = runs.selected
    shard = TokenShard(*(Path(f"results/{run}/data/{name}") for name in ("train.bin", "val.bin", "tokens.json")))
    identity = training_identity(runs.config)
    config = ConfigSlice(identity | {"train": identity["train"] | runtime(runs.config)})
    data = TrainingData.open(shard, config)
    identity["data"] = read_digest(shard.metadata)
    version = runs.training_version(SimpleNamespace(run=run))
    untrained = Path(runs.checkpoint(run, 0))
    if not untrained.exists():
        save_untrained(untrained, identity)
    reached = 0
    for paths, until in ((_paths(runs, until), until) for until in runs.checkpoint_iterations(run)):
        if paths.checkpoint.exists():
            reached = until
            continue
        # a call trains one iteration at least, so that calls of any length come to an end
        reached = train_segment(config, data, Segment(until, identity, stop_at, run, version), paths)
        if reached == until:
            _drop_optimizer(paths)
        if time.monotonic() >= stop_at:
            break
    return reached


def _paths(runs: Runs, until: int) -> SegmentPaths:
    """The files of rule train_segment for the segment that ends at iteration `until`."""
    run = runs.selected
    weights = Path(runs.checkpoint(run, until))
    log = weights.parents[1] / "training" / weights.with_suffix(".parquet").name
    return SegmentPaths(
        start=[Path(path) for path in runs.segment_start(SimpleNamespace(run=run, iteration=until))],
        partial=weights.with_suffix(".partial.safetensors"),
        checkpoint=weights,
        optimizer=weights.with_suffix(".optimizer.safetensors"),
        log=log,
        loops=log.with_suffix(".loops.parquet"),
    )


def _drop_optimizer(paths: SegmentPaths) -> None:
    """Remove the optimizer state that a finished segment started from, as the workflow does."""
    for path in paths.start[1:]:
        path.unlink(missing_ok=True)
