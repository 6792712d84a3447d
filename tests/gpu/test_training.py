"""Speed of training: whole optimizer steps of the measured model on random tokens, after two that
may compile.
"""

import pytest
import torch

from tests import speed

pytestmark = pytest.mark.gpu
# Dense bf16 peak in TFLOP/s, without sparsity, by a part of the device's name (NVIDIA's data
# sheets).
PEAK_TFLOPS = {"H200": 989.0, "H100 80GB HBM3": 989.0, "H100 PCIe": 756.0, "A100": 312.0}
UNITS = {"tokens_per_s": "tokens/s", "tflops": "TFLOP/s", "startup_s": "s", "memory_gb": "GB"}


@pytest.mark.limit(120, turn=0)
def test_training_as_configured(run, record):
    measure(run, 1, run.train.compiles(run.compute.device), record)


@pytest.mark.limit(90)
def test_training_in_the_other_way(run, record):
    measure(run, 1, not run.train.compiles(run.compute.device), record)


@pytest.mark.limit(90, turn=3)
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("factor", [2, 4], ids=["twice the batch", "four times the batch"])
def test_training(run, record, factor, compiled):
    measure(run, factor, compiled, record)


def measure(run, factor: int, compiled: bool, record) -> None:
    """Rows of the batch of the config times a factor, at the mean loop count of the run."""
    torch._dynamo.reset()  # the graphs of another setting count towards the limit of the compiler
    row = speed.fitting(run, factor * run.train.batch_size, compiled)
    if row.get("failed") == "out of memory":
        record("training", row["setting"], None, verdict="does not fit", note=row["failed"])
        return
    assert "failed" not in row, row["failed"]
    for name, unit in UNITS.items():
        if name in row:
            record(name.rpartition("_")[0] or name, row["setting"], row[name], unit)
    if run.compute.device == "cuda":
        name = torch.cuda.get_device_name()
        for peak in (peak for part, peak in PEAK_TFLOPS.items() if part in name):
            record("utilisation", row["setting"], row["tflops"] / peak, f"of {peak:g} TFLOP/s")
