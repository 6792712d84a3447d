"""Training throughput: whole optimizer steps of a preset's model on random tokens."""

import gc
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale import config, rng
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.gpu.report import TOO_LARGE, Row, peak_tflops
from twoscale.model import registry
from twoscale.model.checkpoints import Header
from twoscale.training.plan import mean_flops_per_token
from twoscale.training.recipe import draw_loops
from twoscale.training.state import TrainingState, restore
from twoscale.training.trainer import Trainer, TrainingData

WARM_UP = 2  # iterations that are not counted; the first one compiles
UNTRAINED = Header("weights", 0, 0, {}, {})


@dataclass(frozen=True)
class Throughput:
    """Measures one preset on one device; every setting starts from the same weights and draws the same loop counts.

    Attributes:
        preset: Name of the preset.
        device: "cpu" or "cuda".
        name: Name of the device, which its peak is known by.
        iterations: Counted iterations of a setting.
        weights: The untrained model on the host.
    """

    preset: str
    device: str
    name: str
    iterations: int
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, preset: str, device: str, name: str, iterations: int) -> "Throughput":
        run = config.checked(config.preset(preset))
        model = registry.architecture(run.model.architecture).initialise(run.model, run.seed)
        return cls(preset, device, name, iterations, dict(model.state_dict()))

    def rows(self, sequences: int, compiled: bool) -> list[Row]:
        """Speed, memory and compilation at micro-batches of `sequences`; a row that says so if they do not fit."""
        torch._dynamo.reset()  # the graphs of the setting before count towards the limit of the compiler
        setting = setting_name(sequences, compiled)
        try:
            return self._rows(self._settings(sequences, compiled), setting)
        except torch.OutOfMemoryError:
            return [Row("training", setting, None, "", TOO_LARGE, "out of memory")]
        finally:
            self._free()

    def _rows(self, settings: ConfigSlice, setting: str) -> list[Row]:
        rate, compilation = self._measure(settings)
        tokens_per_s = rate / mean_flops_per_token(settings.model, settings.train).total
        note = f"model FLOPs, causal attention; {self.iterations} iterations"
        rows = [
            Row("training", setting, rate / 1e12, "TFLOP/s", note=note),
            Row("training", setting, tokens_per_s, "tokens/s", note="at the mean loop count"),
        ]
        if settings.train.compile:
            rows.append(Row("compilation", setting, compilation, "s", note="extra time of the first iterations"))
        if peak := peak_tflops(self.name):
            share = rate / 1e12 / peak
            rows.append(Row("utilisation", setting, share, "of the dense bf16 peak", note=f"peak {peak:g} TFLOP/s"))
        if self.device == "cuda":
            rows.append(Row("peak memory", setting, torch.cuda.max_memory_allocated() / 1e9, "GB"))
        return rows

    def _settings(self, sequences: int, compiled: bool) -> ConfigSlice:
        changes = {"train": {"batch_size": sequences, "compile": compiled}, "compute": {"device": self.device}}
        run = config.checked(config.merge(config.preset(self.preset), changes))
        identity = config.training_identity(run)
        return ConfigSlice(identity | {"train": identity["train"] | config.runtime(run)})

    def _measure(self, settings: ConfigSlice) -> tuple[float, float]:
        """FLOP/s of the counted iterations, which draw different loop counts, and the seconds of compilation."""
        model = settings.model
        length = 4 * settings.train.batch_size * model.context_length + 1
        shard = rng.stream(settings.seed, "gpu_check").integers(0, model.vocab_size, size=length).astype("<u2")
        none = torch.empty(0, model.context_length, dtype=torch.int64)
        trainer = Trainer(settings, TrainingData(shard, HeldOut(none, none, (), ())))
        state = restore(settings, self.weights, {}, UNTRAINED)
        first, counted = (self._seconds(trainer, state, count) for count in (WARM_UP, self.iterations))
        flops = [_flops(settings, iteration) for iteration in range(WARM_UP + self.iterations)]
        rate = sum(flops[WARM_UP:]) / counted
        return rate, first - sum(flops[:WARM_UP]) / rate

    def _seconds(self, trainer: Trainer, state: TrainingState, iterations: int) -> float:
        """Time of iterations in a row, in which the host need not wait for the device."""
        self._synchronise()
        started = time.perf_counter()
        for _ in range(iterations):
            trainer.iterate(state)
        trainer.complete(state)
        self._synchronise()
        return time.perf_counter() - started

    def _synchronise(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _free(self) -> None:
        """Return memory that is not in use, for the next setting and for other processes."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def _flops(settings: ConfigSlice, iteration: int) -> float:
    """Model FLOPs of an iteration at the loop counts that it draws."""
    model, train = settings.model, settings.train
    loops = draw_loops(model, settings.seed, iteration)
    flops = registry.architecture(model.architecture).flops(model, loops, train.backprop_depth)
    return flops.total * train.batch_size * model.context_length


def setting_name(sequences: int, compiled: bool) -> str:
    return f"micro-batch {sequences}, {'compiled' if compiled else 'eager'}"
