"""What this machine has: processor, memory, CUDA devices and free disk. Without torch, whose import takes seconds."""

import ast
import ctypes
import os
import platform
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from twoscale.base import InputError


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
    if path is None or not path.is_file():
        return {}
    constants = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(targets[0], ast.Name) and isinstance(node.value, ast.Constant):
            constants[targets[0].id] = node.value.value
    return constants


def check_cuda(origin: str, processes: int = 1, installed: bool = True) -> None:
    """Refuse CUDA on a machine that cannot offer it. Builds of torch for ROCm are not examined.

    Args:
        origin: What asks for CUDA, such as "config key compute.device".
        processes: Number of training processes, one per device.
        installed: Whether the torch that will run is the one of this environment.

    Raises InputError.
    """
    build = torch_build() if installed else {}
    if build.get("hip"):
        return
    problem = None
    if build and build.get("cuda") is None:
        problem = f"PyTorch {build.get('__version__')} is built without CUDA"
    elif not (devices := cuda_devices()):
        problem = "this machine has no CUDA device"
    if problem is not None:
        raise InputError(f"{origin}: found cuda, expected cpu, because {problem}.")
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
