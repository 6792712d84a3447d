"""A tiny run on disk that tests train through scripts/train_segment.py, in separate processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from tests.ports import free_port
from tests.small import learnable_tokens, model_config, shard_part, train_config
from twoscale import tables
from twoscale.canonical import canonical_json
from twoscale.config import RUNTIME_KEYS, plain
from twoscale.launch import Share, torchrun_line
from twoscale.model import checkpoints
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise

TRAINER = Path(__file__).parents[1] / "scripts" / "train_segment.py"
TIMEOUT = 2400  # seconds; far more than a segment takes
SEED = 11
DIGEST = "of no text"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def start_process(command: list[str]) -> subprocess.Popen:
    """Start a command in processes of one thread each; its standard error is kept."""
    return subprocess.Popen(command, env=os.environ | ONE_THREAD, stderr=subprocess.PIPE, text=True)


class Run:
    """A folder with token shards and the untrained model; `variants` and `recipe` change the small config.

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

    def command(self, start: int, until: int, endpoint: str = "", **runtime: Any) -> list[str]:
        """The shell line of the rule, for the segment from `start` to `until`.

        On several nodes: the line of one of them; the launchers meet at `endpoint`.
        """
        train = plain(train_config(**self.recipe, **runtime))
        launch, processes = [sys.executable], train["processes"] // train["nodes"]
        if train["nodes"] > 1:
            torchrun = torchrun_line(Share(train["nodes"], processes, cpus=1, gpus=0), endpoint, "test")
            launch += ["-m", "torch.distributed.run", *torchrun[1:]]
        elif processes > 1:
            launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--"]
        options = {
            "config": canonical_json(self.config()),
            "runtime": canonical_json({key: train[key] for key in RUNTIME_KEYS}),
            "train": self.folder / "train.bin",
            "val": self.folder / "val.bin",
            "metadata": self.folder / "tokens.json",
            "until": until,
            "run": "small",
            "partial": self.partial(until),
            "checkpoint": self.checkpoint(until),
            "optimizer": self.optimizer(until),
            "log": self.checkpoint(until).with_suffix(".parquet"),
            "loops": self.folder / f"loops_{until}.parquet",
        }
        files = [self.checkpoint(start), *([self.optimizer(start)] if start else [])]
        arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        return [*launch, str(TRAINER), *arguments, "--start", *map(str, files)]

    def start_nodes(self, start: int, until: int, **runtime: Any) -> list[subprocess.Popen]:
        """Start the segment on train.nodes nodes: one launcher each, all on this machine."""
        command = self.command(start, until, f"localhost:{free_port()}", **runtime)
        return [start_process(command) for _ in range(runtime["nodes"])]

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
        return self
