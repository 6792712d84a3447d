"""A tiny run on disk that tests train through scripts/train_segment.py, in separate processes."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from tests import forked_python
from tests.ports import free_port
from tests.small import learnable_tokens, model_config, shard_part, train_config
from twoscale import tables
from twoscale.base import canonical_json
from twoscale.config import RUNTIME_KEYS, ConfigSlice, plain
from twoscale.data.shards import TokenShard
from twoscale.jobs.machine import NODE_NUMBER, NodeResources, torchrun_line
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise
from twoscale.training.state import Segment, SegmentPaths, load_state, save_partial
from twoscale.training.trainer import Trainer, TrainingData

SCRIPTS = Path(__file__).parents[1] / "scripts"
TRAINER = SCRIPTS / "train_segment.py"
TIMEOUT = 2400  # seconds; far more than a segment takes
SEED = 11
DIGEST = "of no text"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def start_process(command: list[str], **variables: str) -> subprocess.Popen:
    """Start a command in processes of one thread each; its standard error is kept."""
    return subprocess.Popen(
        command, env=os.environ | ONE_THREAD | variables, stderr=subprocess.PIPE, text=True
    )


def kill(launcher: subprocess.Popen) -> None:
    """End a launcher and its processes with SIGKILL; the machine that they are on stays."""
    process = psutil.Process(launcher.pid)
    for member in [process, *process.children(recursive=True)]:
        member.kill()
    launcher.communicate()


@contextmanager
def launchers(commands: list[list[str]], port: int) -> Iterator[list[subprocess.Popen]]:
    """One launcher for each node, all on this machine; they meet at a port of the first.

    What still runs at the end of the block is killed.
    """
    nodes = []
    try:
        for number, command in enumerate(commands):
            nodes.append(start_process(command, **{NODE_NUMBER: str(number)}))
            wait_for_port(port)
        yield nodes
    finally:
        for node in nodes:
            if node.poll() is None:
                kill(node)


def wait_for_port(port: int) -> None:
    """Wait until a process on this machine accepts connections there."""
    end = time.monotonic() + TIMEOUT
    while True:
        try:
            socket.create_connection(("localhost", port), timeout=TIMEOUT).close()
        except ConnectionRefusedError:
            assert time.monotonic() < end, f"nothing accepts connections at port {port}"
            time.sleep(0.05)
        else:
            return


class Run:
    """A folder with token shards and the untrained model; `variants` and `recipe` change the small
    config.

    Runtime keys of `train` are given when a segment is trained.
    """

    def __init__(self, folder: Path, variants: dict[str, Any] | None = None, **recipe: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.model = model_config(hidden_size=16, **(variants or {}))
        train = plain(train_config(**recipe))
        self.recipe = {key: value for key, value in train.items() if key not in RUNTIME_KEYS}
        self.write_tokens()
        header = Header("weights", 0, 0, self.config() | {"data": DIGEST}, {})
        checkpoints.save(self.checkpoint(0), initialise(self.model, SEED).state_dict(), header)

    def write_tokens(self) -> None:
        parts = {"train.bin": learnable_tokens(400), "val.bin": learnable_tokens(100)[::-1]}
        for name, ids in parts.items():
            ids.tofile(self.folder / name)
        counts = {name: shard_part(ids) for name, ids in parts.items()}
        metadata = {"dtype": "uint16", "end_of_text": 36, "parts": counts, "digest": DIGEST}
        (self.folder / "tokens.json").write_text(json.dumps(metadata))

    def config(self) -> dict[str, Any]:
        """What the rule passes as --config."""
        return {"seed": SEED, "device": "cpu", "model": plain(self.model), "train": self.recipe}

    def checkpoint(self, iteration: int) -> Path:
        return self.folder / f"iteration_{iteration:06d}.safetensors"

    def optimizer(self, iteration: int) -> Path:
        return self.checkpoint(iteration).with_suffix(".optimizer.safetensors")

    def partial(self, until: int) -> Path:
        return self.checkpoint(until).with_suffix(".partial.safetensors")

    def log(self, iteration: int) -> pd.DataFrame:
        return tables.read("training", self.checkpoint(iteration).with_suffix(".parquet"))

    def loops(self, iteration: int) -> pd.DataFrame:
        return tables.read("training_loops", self.folder / f"loops_{iteration}.parquet")

    def metrics(self) -> pd.DataFrame:
        """The lines that were written during training."""
        return pd.read_csv(self.folder / "metrics.csv")

    def command(self, start: int, until: int, port: int = 0, **runtime: Any) -> list[str]:
        """The shell line of the rule, for the segment from `start` to `until`.

        On several nodes: the line of one of them; the launchers meet at `port`.
        """
        train = plain(train_config(**self.recipe, **runtime))
        python = forked_python.folder() / "python" if train["nodes"] == 1 else sys.executable
        launch = [str(python)]
        if train["processes"] > 1:
            share = NodeResources(
                train["nodes"], train["processes"] // train["nodes"], cpus=1, gpus=0
            )
            several = ["-m", "torch.distributed.run", *torchrun_line(share, "localhost", port)[1:]]
            launch += (
                several if share.nodes > 1 else [str(SCRIPTS / "with_nodes.py"), *map(str, share)]
            )
        options = {
            "config": canonical_json(self.config()),
            "runtime": canonical_json({key: train[key] for key in RUNTIME_KEYS}),
            "train": self.folder / "train.bin",
            "val": self.folder / "val.bin",
            "metadata": self.folder / "tokens.json",
            "until": until,
            "run": "small",
            "code": "",
            "partial": self.partial(until),
            "checkpoint": self.checkpoint(until),
            "optimizer": self.optimizer(until),
            "log": self.checkpoint(until).with_suffix(".parquet"),
            "loops": self.folder / f"loops_{until}.parquet",
        }
        files = [self.checkpoint(start), *([self.optimizer(start)] if start else [])]
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        return [*launch, str(TRAINER), *arguments, "--start", *map(str, files)]

    def on_nodes(
        self, start: int, until: int, **runtime: Any
    ) -> AbstractContextManager[list[subprocess.Popen]]:
        """`launchers` of the segment on train.nodes nodes."""
        port = free_port()
        return launchers(runtime["nodes"] * [self.command(start, until, port, **runtime)], port)

    def succeed_on_nodes(self, start: int, until: int, **runtime: Any) -> "Run":
        with self.on_nodes(start, until, **runtime) as nodes:
            said = [node.communicate(timeout=TIMEOUT)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [0] * len(nodes), said
        assert not any("Warning" in text for text in said), said
        return self

    def pause(self, until: int) -> None:
        """Train one iteration of the first segment in this process, and leave its partial state."""
        config = ConfigSlice(self.config() | {"train": plain(train_config(**self.recipe))})
        shard = TokenShard(
            *(self.folder / name for name in ("train.bin", "val.bin", "tokens.json"))
        )
        segment = Segment(until, self.config() | {"data": DIGEST})
        log = self.checkpoint(until).with_suffix(".parquet")
        loops = self.folder / f"loops_{until}.parquet"
        outputs = (self.partial(until), self.checkpoint(until), self.optimizer(until), log, loops)
        paths = SegmentPaths([self.checkpoint(0)], *outputs)
        state = load_state(config, segment, paths)
        Trainer(config, TrainingData.open(shard, config)).iterate(state)
        save_partial(paths.partial, state, segment.partial_identity(paths.start[0]))

    def train(self, start: int, until: int, **runtime: Any) -> subprocess.CompletedProcess:
        """Run the segment in processes of one thread each."""
        return subprocess.run(
            self.command(start, until, **runtime),
            env=os.environ | ONE_THREAD,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def succeed(self, start: int, until: int, **runtime: Any) -> "Run":
        done = self.train(start, until, **runtime)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Warning" not in done.stderr, done.stderr
        return self
