"""How fast a machine trains a run, eager and compiled, measured in whole iterations.

Memory grows with the loop counts of an iteration, so the largest ones of the run are tried as well.

A row is a dict: `setting` in words, the keys of `train` that it changes, and `tokens_per_s` at the
mean loop count, `tflops`, `memory_gb` on CUDA and `startup_s` (what the first iterations took
longer, such as compilation), or `failed` with the reason in their place.
"""

from typing import Any

import pandas as pd
import torch

from twoscale import config as configs
from twoscale import rng
from twoscale.base import first_line
from twoscale.config import Config, ConfigSlice, ModelConfig
from twoscale.data.batches import HeldOut
from twoscale.model import registry
from twoscale.model.checkpoints import Header
from twoscale.model.flops import mean_flops_per_token
from twoscale.model.interface import LoopedModel
from twoscale.training.state import TrainingState, restore
from twoscale.training.trainer import Trainer, TrainingData, draw_loops

_WARM_UP, _COUNTED = 2, 10  # iterations; the first ones compile
_MICRO_BATCHES = (1, 2, 5, 10)  # the first of these that fits the memory of the device is taken

Row = dict[str, Any]


def fitting(run: Config, batch_size: int, compiled: bool) -> Row:
    """The row of a setting, in the fewest micro-batches that fit the memory of the device."""
    for micro_batches in _MICRO_BATCHES:
        row = _measure(run, batch_size, micro_batches, compiled)
        if row.get("failed") != "out of memory":
            break
    return row


def _measure(run: Config, batch_size: int, micro_batches: int, compiled: bool) -> Row:
    """The row of one setting; what fails is a row as well."""
    keys = {"batch_size": batch_size, "micro_batches": micro_batches, "compile": compiled}
    parts = f" in {micro_batches} micro-batches" if micro_batches > 1 else ""
    setting = f"{'compiled' if compiled else 'eager'}, {batch_size} sequences{parts}"
    row = {"setting": setting, **keys}
    changed = run.model_copy(update={"train": run.train.model_copy(update=keys)})
    on_cuda = run.compute.device == "cuda"
    if on_cuda:
        # the peak memory of this setting alone
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        flops_per_s, startup = _speed(changed)
    except torch.OutOfMemoryError:
        return row | {"failed": "out of memory"}
    except Exception as error:  # whatever a compiler raises must not end the session
        return row | {"failed": first_line(error)}
    # iterations draw different loop counts, so their speed in FLOPs is converted at the mean count
    tokens_per_s = flops_per_s / mean_flops_per_token(run.model, run.train).total
    row |= {"tokens_per_s": tokens_per_s, "tflops": flops_per_s / 1e12, "startup_s": startup}
    if on_cuda:
        row["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return row


def _speed(run: Config) -> tuple[float, float]:
    """`speed_of_log` of a few iterations, which draw different loop counts."""
    identity = configs.training_identity(run)
    # the identity leaves out keys such as `micro_batches`, which change no result but for rounding
    settings = ConfigSlice(identity | {"train": identity["train"] | configs.runtime(run)})
    trainer, state = start(settings)
    for _ in range(_WARM_UP + _COUNTED):
        trainer.iterate(state)
    trainer.log_last_iteration(state)  # waits for the device
    if settings.device == "cuda":  # whether the largest loop counts of the run fit as well
        draws = [draw_loops(run.model, run.seed, n) for n in range(run.train.iterations)]
        trainer.accumulate_gradient(state.model, 0, max(draws, key=sum))
        torch.cuda.synchronize()
    tokens = run.train.batch_size * run.model.context_length
    return speed_of_log(pd.DataFrame(state.log), tokens)


def speed_of_log(log: pd.DataFrame, tokens: int) -> tuple[float, float]:
    """FLOP/s after the first `_WARM_UP` iterations of so many tokens, and the seconds that these
    took longer than at this speed.
    """
    # the log has the speeds of each iteration; sums need seconds and FLOPs
    seconds = tokens / log["tokens_per_s"]
    flops = 1e12 * log["tflops"] * seconds
    rate = flops[_WARM_UP:].sum() / seconds[_WARM_UP:].sum()
    expected = flops[:_WARM_UP].sum() / rate
    return rate, seconds[:_WARM_UP].sum() - expected


def start(settings: Any) -> tuple[Trainer, TrainingState]:
    """A trainer on random tokens, and the state of an untrained model, whose weights only have the
    right size.
    """
    model, train = settings.model, settings.train
    count = 4 * train.batch_size * model.context_length + 1  # with the last target
    tokens = rng.stream(settings.seed, "trial").integers(0, model.vocab_size, size=count)
    none = torch.empty(0, model.context_length, dtype=torch.int64)
    data = TrainingData(tokens.astype("<u2"), HeldOut(none, none, (), ()))  # no held-out text
    weights = dict(any_model(model).state_dict())
    state = restore(settings, weights, {}, Header("weights", 0, 0, {}, {}))
    return Trainer(settings, data), state


@torch.no_grad()
def any_model(config: ModelConfig) -> LoopedModel:
    """A model to take times of: its weights have the right size, and are drawn faster than the
    initial ones.
    """
    model = registry.build(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else torch.nn.init.ones_(weight)
    return model
