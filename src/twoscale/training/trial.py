"""How fast a machine trains a run, eager and compiled, measured in whole iterations before a
session chooses.

Memory grows with the loop counts of an iteration, so the largest ones of the run are tried as well.

A row is a dict: `setting` in words, the keys of `train` that it changes, and `tokens_per_s` at the
mean loop count, `tflops`, `memory_gb` on CUDA and `startup_s` (what the first iterations took
longer, such as compilation), or `failed` with the reason in their place.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

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
from twoscale.training.state import restore
from twoscale.training.trainer import Trainer, TrainingData, draw_loops

WARM_UP, COUNTED = 2, 10  # iterations; the first ones compile
MICRO_BATCHES = (
    1,
    2,
    5,
    10,
)  # the first of these fits that does not exceed the memory of the device
SLOW = 70_000  # tokens/s of the configured batch below which a larger one is tried
LARGER = 4  # times the configured batch

Row = dict[str, Any]


def trial(run: Config) -> Iterator[Row]:
    """The rows that decide how a run is trained: eager, compiled if the config compiles, and slow
    batches enlarged.
    """
    rows = [row := fitting(run, run.train.batch_size, compiled=False)]
    yield row
    if run.train.compiles(run.compute.device):
        rows.append(row := fitting(run, run.train.batch_size, compiled=True))
        yield row
    fastest = max(rows, key=lambda row: row.get("tokens_per_s", 0.0))
    if run.compute.device == "cuda" and fastest.get("tokens_per_s", 0.0) < SLOW:
        yield fitting(run, LARGER * run.train.batch_size, fastest["compile"])


def fitting(run: Config, batch_size: int, compiled: bool) -> Row:
    """`measure` in the fewest micro-batches that fit the memory of the device."""
    for micro_batches in MICRO_BATCHES:
        row = measure(run, batch_size, micro_batches, compiled)
        if row.get("failed") != "out of memory":
            break
    return row


def measure(run: Config, batch_size: int, micro_batches: int, compiled: bool) -> Row:
    """The row of one setting; what fails is a row as well."""
    keys = {"batch_size": batch_size, "micro_batches": micro_batches, "compile": compiled}
    parts = f" in {micro_batches} micro-batches" if micro_batches > 1 else ""
    row = {
        "setting": f"{'compiled' if compiled else 'eager'}, {batch_size} sequences{parts}",
        **keys,
    }
    changed = run.model_copy(update={"train": run.train.model_copy(update=keys)})
    on_cuda = run.compute.device == "cuda"
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        flops_per_s, startup = speed(changed)
    except torch.OutOfMemoryError:
        return row | {"failed": "out of memory"}
    except Exception as error:  # whatever a compiler raises must not end the session
        return row | {"failed": first_line(error)}
    tokens_per_s = flops_per_s / mean_flops_per_token(run.model, run.train).total
    row |= {"tokens_per_s": tokens_per_s, "tflops": flops_per_s / 1e12, "startup_s": startup}
    return row | ({"memory_gb": torch.cuda.max_memory_allocated() / 1e9} if on_cuda else {})


def speed(run: Config) -> tuple[float, float]:
    """FLOP/s of the counted iterations, which draw different loop counts, and the extra seconds of
    the first ones.
    """
    identity = configs.training_identity(run)
    settings = ConfigSlice(identity | {"train": identity["train"] | configs.runtime(run)})
    trainer, state = start(settings)
    times, flops = [], []
    for iterations in (range(WARM_UP), range(WARM_UP, WARM_UP + COUNTED)):
        began = time.perf_counter()
        for _ in iterations:
            trainer.iterate(state)
        trainer.complete(state)  # waits for the device
        times.append(time.perf_counter() - began)
        flops.append(sum(map(iteration_flops(settings), iterations)))
    if settings.device == "cuda":  # whether the largest loop counts of the run fit as well
        most = max(
            (draw_loops(run.model, run.seed, n) for n in range(run.train.iterations)), key=sum
        )
        trainer.accumulate_gradient(state.model, 0, most)
        torch.cuda.synchronize()
    rate = flops[1] / times[1]
    return rate, times[0] - flops[0] / rate


def start(settings: Any) -> tuple[Trainer, Any]:
    """A trainer on random tokens, and the state of an untrained model, whose weights only have the
    right size.
    """
    model, train = settings.model, settings.train
    stream = rng.stream(settings.seed, "trial")
    tokens = stream.integers(
        0, model.vocab_size, size=4 * train.batch_size * model.context_length + 1
    ).astype("<u2")
    none = torch.empty(0, model.context_length, dtype=torch.int64)
    trainer = Trainer(settings, TrainingData(tokens, HeldOut(none, none, (), ())))
    weights = dict(any_model(model).state_dict())
    return trainer, restore(settings, weights, {}, Header("weights", 0, 0, {}, {}))


@torch.no_grad()
def any_model(config: ModelConfig) -> LoopedModel:
    """A model to take times of: its weights have the right size, and are drawn faster than the
    initial ones.
    """
    model = registry.build(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else torch.nn.init.ones_(weight)
    return model


def iteration_flops(settings: Any) -> Callable[[int], float]:
    """A function of the iteration: the FLOPs of its loop counts."""
    model, train = settings.model, settings.train
    architecture = registry.architecture(model.architecture)

    def flops(iteration: int) -> float:
        loops = draw_loops(model, settings.seed, iteration)
        per_token = architecture.flops(model, loops, train.backprop_depth).total
        return per_token * train.batch_size * model.context_length

    return flops
