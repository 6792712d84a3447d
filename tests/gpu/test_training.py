"""Speed of training: whole optimizer steps of the measured model on random tokens, after two that may compile."""

import time

import pytest
import torch

from twoscale import config, rng
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.model import registry
from twoscale.model.checkpoints import Header
from twoscale.model.flops import mean_flops_per_token
from twoscale.training.state import restore
from twoscale.training.trainer import Trainer, TrainingData, draw_loops

pytestmark = pytest.mark.gpu
WARM_UP, COUNTED = 2, 8  # iterations
# Dense bf16 peak in TFLOP/s, without sparsity, by a part of the device's name (NVIDIA's data sheets).
PEAK_TFLOPS = {"H200": 989.0, "H100 80GB HBM3": 989.0, "H100 PCIe": 756.0, "A100": 312.0}


@pytest.mark.limit(120, turn=0)
def test_training_as_configured(run, record):
    """The schedule of a session follows from these rows."""
    measure(run, run.train.batch_size, run.train.compiles(run.compute.device), record)


@pytest.mark.limit(90)
def test_training_in_the_other_way(run, record):
    measure(run, run.train.batch_size, not run.train.compiles(run.compute.device), record)


@pytest.mark.limit(90, turn=3)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("factor", [2, 0.2], ids=["twice the batch", "a fifth of the batch"])
def test_training(run, record, factor, compiled):
    measure(run, max(1, round(factor * run.train.batch_size)), compiled, record)


def measure(run, sequences: int, compiled: bool, record) -> None:
    changes = {"batch_size": sequences, "compile": compiled}
    run = run.model_copy(update={"train": run.train.model_copy(update=changes)})
    identity = config.training_identity(run)
    settings = ConfigSlice(identity | {"train": identity["train"] | config.runtime(run)})
    setting = f"micro-batch {sequences}, {'compiled' if compiled else 'eager'}"
    on_cuda = settings.device == "cuda"
    torch._dynamo.reset()  # the graphs of another setting count towards the limit of the compiler
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        rate, compilation = speed(settings)
    except torch.OutOfMemoryError:
        record("training", setting, None, verdict="does not fit", note="out of memory")
        return
    tokens_per_s = rate / mean_flops_per_token(settings.model, settings.train).total
    record("training", setting, rate / 1e12, "TFLOP/s", note=f"model FLOPs, causal attention; {COUNTED} iterations")
    record("training", setting, tokens_per_s, "tokens/s", note="at the mean loop count")
    if compiled:
        record("compilation", setting, compilation, "s", note="extra time of the first iterations")
    if on_cuda:
        record("peak memory", setting, torch.cuda.max_memory_allocated() / 1e9, "GB")
        name = torch.cuda.get_device_name()
        for peak in (peak for part, peak in PEAK_TFLOPS.items() if part in name):
            record("utilisation", setting, rate / 1e12 / peak, f"of {peak:g} TFLOP/s")


def speed(settings: ConfigSlice) -> tuple[float, float]:
    """FLOP/s of the counted iterations, which draw different loop counts, and the seconds of compilation."""
    model, train = settings.model, settings.train
    source = rng.stream(settings.seed, "gpu_check")
    shard = source.integers(0, model.vocab_size, size=4 * train.batch_size * model.context_length + 1).astype("<u2")
    none = torch.empty(0, model.context_length, dtype=torch.int64)
    trainer = Trainer(settings, TrainingData(shard, HeldOut(none, none, (), ())))
    architecture = registry.architecture(model.architecture)
    weights = dict(architecture.initialise(model, settings.seed).state_dict())
    state = restore(settings, weights, {}, Header("weights", 0, 0, {}, {}))
    times, flops = [], []
    for iterations in (range(WARM_UP), range(WARM_UP, WARM_UP + COUNTED)):
        began = time.perf_counter()
        for _ in iterations:
            trainer.iterate(state)
        trainer.complete(state)  # waits for the device
        times.append(time.perf_counter() - began)
        loops = (draw_loops(model, settings.seed, iteration) for iteration in iterations)
        per_token = sum(architecture.flops(model, drawn, train.backprop_depth).total for drawn in loops)
        flops.append(per_token * train.batch_size * model.context_length)
    rate = flops[1] / times[1]
    return rate, times[0] - flops[0] / rate
