"""The speed of a run's training, measured by iterations on its own tokens."""

import time
from pathlib import Path

import torch

from twoscale.config import ConfigSlice, runtime, training_identity
from twoscale.data.shards import TokenShard
from twoscale.gpu.throughput import UNTRAINED, WARM_UP
from twoscale.model import registry
from twoscale.training.state import restore
from twoscale.training.trainer import Trainer, TrainingData
from twoscale.workflow.runs import Runs

LEAST = 3  # iterations


def flops_per_s(runs: Runs, seconds: float) -> float:
    """Model FLOPs per second of the selected run's training, over at least `seconds` after the warm-up.

    A rate of FLOPs, because iterations draw different loop counts. Raises InputError for tokens that are missing.
    """
    torch.set_num_threads(runs.config.train.cpu_threads)
    identity = training_identity(runs.config)
    config = ConfigSlice(identity | {"train": identity["train"] | runtime(runs.config)})
    files = ("train.bin", "val.bin", "tokens.json")
    data = TrainingData.open(TokenShard(*(Path(f"results/{runs.selected}/data/{name}") for name in files)), config)
    model = registry.architecture(config.model.architecture).initialise(config.model, config.seed)
    trainer, state = Trainer(config, data), restore(config, dict(model.state_dict()), {}, UNTRAINED)
    for _ in range(WARM_UP):
        trainer.iterate(state)
    trainer.complete(state)
    began, first = time.perf_counter(), len(state.log)
    while len(state.log) < first + LEAST or time.perf_counter() - began < seconds:
        trainer.iterate(state)
    trainer.complete(state)  # waits for the device
    elapsed = time.perf_counter() - began
    tokens = config.train.batch_size * config.model.context_length
    return sum(1e12 * row["tflops"] / row["tokens_per_s"] for row in state.log[first:]) * tokens / elapsed
