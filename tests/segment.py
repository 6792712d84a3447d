"""A tiny run on disk that tests train through scripts/train_segment.py, in processes of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from small import learnable_tokens, model_config, train_config

from twoscale.model import checkpoints
from twoscale import config
from twoscale import tables
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise

TRAINER = Path(__file__).parents[1] / "scripts" / "train_segment.py"
PATIENCE = 240  # seconds; far more than a segment takes
SEED = 11
DIGEST = "of no text"


class Run:
    """A folder with token shards and the untrained model; `readings` and `recipe` go over the small settings.

    How a segment is cut, watched and spread is said when it is trained.
    """

    def __init__(self, folder: Path, readings: dict[str, Any] | None = None, **recipe: Any) -> None:
        self.folder = folder
        self.model = model_config(width=16, **(readings or {}))
        train = vars(train_config(**recipe))
        self.recipe = {key: value for key, value in train.items() if key not in config.RUNTIME_KEYS}
        self.write_tokens()
        header = Header("weights", 0, 0, self.chosen() | {"data": DIGEST}, {})
        checkpoints.save(self.checkpoint(0), initialise(self.model, SEED).state_dict(), header)

    def write_tokens(self) -> None:
        parts = {"train.bin": learnable_tokens(400), "val.bin": learnable_tokens(100)[::-1]}
        for name, ids in parts.items():
            ids.tofile(self.folder / name)
        counts = {name: {"count": len(ids)} for name, ids in parts.items()}
        (self.folder / "tokens.json").write_text(json.dumps({"dtype": "uint16", "parts": counts, "digest": DIGEST}))

    def chosen(self) -> dict[str, Any]:
        """What the rule hands over as --config."""
        return {"seed": SEED, "device": "cpu", "model": vars(self.model), "train": self.recipe}

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"iteration_{iteration:06d}.safetensors"

    def optimizer(self, step: int) -> Path:
        return self.checkpoint(step).with_suffix(".optimizer.safetensors")

    def partial(self, until: int) -> Path:
        return self.checkpoint(until).with_suffix(".partial.safetensors")

    def log(self, step: int) -> pd.DataFrame:
        return tables.read("training", self.folder / f"log_{iteration}.parquet", self.model.group_labels)

    def command(self, start: int, until: int, **operation: Any) -> list[str]:
        """The shell line of the rule, for the segment from `start` to `until`."""
        train = train_config(**self.recipe, **operation)
        launch = [sys.executable]
        if train.processes > 1:
            launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(train.processes), "--"]
        options = {
            "settings": canonical_json(self.chosen()),
            "operation": canonical_json({key: getattr(train, key) for key in config.RUNTIME_KEYS}),
            "train": self.folder / "train.bin",
            "val": self.folder / "val.bin",
            "metadata": self.folder / "tokens.json",
            "until": until,
            "partial": self.partial(until),
            "checkpoint": self.checkpoint(until),
            "optimizer": self.optimizer(until),
            "log": self.folder / f"log_{until}.parquet",
        }
        started = [self.checkpoint(start), *([self.optimizer(start)] if start else [])]
        given = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        return [*launch, str(TRAINER), *given, "--start", *map(str, started)]

    def train(self, start: int, until: int, **operation: Any) -> subprocess.CompletedProcess:
        """Run the segment in processes of one thread each."""
        return subprocess.run(
            self.command(start, until, **operation),
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def succeed(self, start: int, until: int, **operation: Any) -> "Run":
        done = self.train(start, until, **operation)
        assert done.returncode == 0, done.stdout + done.stderr
        return self
