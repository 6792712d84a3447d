"""Training throughput: whole optimizer steps of a preset's model on random tokens."""

import gc
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale import config, rng
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.gpu.report import Row, peak_tflops
from twoscale.model import registry
from twoscale.model.checkpoints import Header
from twoscale.training.plan import mean_flops_per_token
from twoscale.training.trainer import Trainer, TrainingData, restore

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
        """Tokens/s, model TFLOP/s, utilisation and peak memory at micro-batches of `sequences`."""
        torch._dynamo.reset()  # the graphs of the setting before count towards the limit of the compiler
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        setting = f"micro-batch {sequences}, {'compiled' if compiled else 'eager'}"
        settings = self._settings(sequences, compiled)
        tflops = self._tflops(settings)
        tokens_per_s = 1e12 * tflops / mean_flops_per_token(settings.model, settings.train).total
        peak = peak_tflops(self.name)
        note = f"model FLOPs, causal attention; median of {self.iterations} iterations"
        return [
            Row("training", setting, tflops, "TFLOP/s", note=note),
            Row("training", setting, tokens_per_s, "tokens/s", note="at the mean loop count"),
            Row("utilisation", setting, tflops / peak if peak else None, "of the dense bf16 peak", note=_of(peak)),
            Row("peak memory", setting, self._memory(), "GB"),
        ]

    def _settings(self, sequences: int, compiled: bool) -> ConfigSlice:
        changes = {"train": {"batch_size": sequences, "compile": compiled}, "compute": {"device": self.device}}
        run = config.checked(config.merge(config.preset(self.preset), changes))
        identity = config.training_identity(run)
        return ConfigSlice(identity | {"train": identity["train"] | config.runtime(run)})

    def _tflops(self, settings: ConfigSlice) -> float:
        """Median over the counted iterations, which draw different loop counts."""
        model = settings.model
        count = 4 * settings.train.batch_size * model.context_length + 1
        shard = rng.stream(settings.seed, "gpu_check").integers(0, model.vocab_size, size=count).astype("<u2")
        none = torch.empty(0, model.context_length, dtype=torch.int64)
        trainer = Trainer(settings, TrainingData(shard, HeldOut(none, none, (), ())))
        state = restore(settings, self.weights, {}, UNTRAINED)
        for _ in range(WARM_UP + self.iterations):
            trainer.iterate(state)
        trainer.complete(state)
        return statistics.median(row["tflops"] for row in state.log[WARM_UP:])

    def _memory(self) -> float | None:
        return torch.cuda.max_memory_allocated() / 1e9 if self.device == "cuda" else None


def _of(peak: float | None) -> str:
    return f"peak {peak:g} TFLOP/s" if peak else "no peak is known for this device"
