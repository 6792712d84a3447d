"""The machine of a job, and what the bits of its result depend on besides config and code.

Each segment of training records its environments in the metadata of its log, and a partial state in its header. Weights
and optimizer states leave them out: equal states give equal files, so that later jobs are not repeated because of a
variable that changed no bit on this machine. The result cache restores a result only where the kernels are the same.
"""

import ctypes
import json
import os
import platform
import re
import runpy
import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from twoscale import tables
from twoscale.base import InputError

# --- what the machine has; without torch, whose import takes seconds


def description() -> dict[str, Any]:
    """Name of the processor, number of CPUs, and memory in GB."""
    try:
        name = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        name = None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": name[1] if name else platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
    }


def cuda_devices() -> int:
    """Number of CUDA devices that the driver offers to this process, which CUDA_VISIBLE_DEVICES can limit."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # no driver
        return 0
    count = ctypes.c_int()
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return 0 if failed else count.value


def torch_build() -> dict[str, Any]:
    """The constants of torch's version.py, such as __version__, cuda and hip; empty where torch is not installed."""
    spec = find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    return runpy.run_path(str(path)) if path is not None and path.is_file() else {}


def check_cuda(origin: str, processes: int = 1, installed: bool = True) -> None:
    """Refuse CUDA for `processes` training processes, one per device, on a machine that cannot offer it: InputError.

    `origin` asks for it, such as "config key compute.device". `installed`: whether the torch that will run is the one
    of this environment. Builds of torch for ROCm are not examined.
    """
    build = torch_build() if installed else {}
    if build.get("hip"):
        return
    devices = cuda_devices()
    if build and build.get("cuda") is None:
        version = build.get("__version__")
        raise InputError(f"{origin}: found cuda, expected cpu, because PyTorch {version} is built without CUDA.")
    if not devices:
        raise InputError(f"{origin}: found cuda, expected cpu, because this machine has no CUDA device.")
    if processes > devices:
        raise InputError(
            f"config key train.processes: found {processes}, expected at most {devices}, the number of CUDA "
            "devices of this machine."
        )


def check_disk(folder: Path, needed: int, purpose: str) -> None:
    """Refuse to put `needed` bytes into a folder, which need not exist yet, where less is free. Raises InputError."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise InputError(
            f"folder {folder}: found {free / 1e9:.3f} GB of free disk space, expected at least {needed / 1e9:.3f} GB "
            f"for {purpose}."
        )


# --- environments: what bits depend on besides config and code ---

ENVIRONMENTS = "twoscale.environments"  # key of the metadata of a log
# Variables that choose other kernels, another order of sums or another precision of products.
VARIABLES = (
    "ATEN_CPU_CAPABILITY CUBLAS_WORKSPACE_CONFIG DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA MKL_CBWR MKL_DYNAMIC "
    "MKL_ENABLE_INSTRUCTIONS NVIDIA_TF32_OVERRIDE OMP_DYNAMIC OMP_THREAD_LIMIT ONEDNN_DEFAULT_FPMATH_MODE "
    "ONEDNN_MAX_CPU_ISA TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
).split()
FIRST = "first_iteration"

Environment = Mapping[str, Any]


def kernels(device: str) -> dict[str, Any]:
    """What selects the kernels of this process: names of variables and facts -> values, without unset variables."""
    import torch

    cuda = {"cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()} if device == "cuda" else {}
    facts = {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()} | cuda
    return facts | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def environment(device: str, processes: int, nodes: int = 1, shard: bool = False) -> dict[str, Any]:
    """The environment of this process: its `kernels`, threads and processes; one node and a whole model go unsaid."""
    import torch

    several = ({"nodes": nodes} if nodes > 1 else {}) | ({"shard": shard} if shard else {})
    return kernels(device) | {"threads": torch.get_num_threads(), "processes": processes} | several


def differences(before: Environment, now: Environment, words: tuple[str, str] = ("before", "now")) -> list[str]:
    """What differs, one text each, in alphabetical order. `words`: what the two are called."""
    pairs = {name: (before.get(name), now.get(name)) for name in sorted((before.keys() | now.keys()) - {FIRST})}
    shown = {name: ["unset" if value is None else repr(value) for value in pair] for name, pair in pairs.items()}
    return [f"{name}: {old} {words[0]}, {new} {words[1]}" for name, (old, new) in shown.items() if old != new]


def warning(before: Environment, now: Environment) -> str | None:
    """One line where training continues in another environment, otherwise None."""
    if not (changes := differences(before, now)):
        return None
    return (
        f"warning: training continues in another environment ({'; '.join(changes)}), so the weights may "
        "not be bit-identical to those of an uninterrupted run"
    )


def extended(environments: Sequence[Environment], iteration: int, now: Environment) -> list[Environment]:
    """The environments of a segment, each with its first iteration, where `iteration` is the first one in `now`."""
    if environments and not differences(environments[-1], now):
        return list(environments)
    return [*environments, {FIRST: iteration, **now}]


def distinct_environments(logs: Iterable[Path]) -> list[Environment]:
    """The environments of segments in order, each that differs from the one before."""
    found: list[Environment] = []
    for entry in (entry for log in logs for entry in recorded_environments(log)):
        if not found or differences(found[-1], entry):
            found.append(entry)
    return found


def valid_environments(value: Any) -> list[Environment]:
    """A value from a file if it is a list of environments, otherwise none."""
    return value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else []


def recorded_environments(log: Path) -> list[Environment]:
    """The environments of the segment with this log; none where it is missing or does not say."""
    try:
        return valid_environments(json.loads(tables.metadata(log).get(ENVIRONMENTS, "[]")))
    except (OSError, ValueError):
        return []
