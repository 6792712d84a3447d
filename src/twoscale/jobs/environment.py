"""What bits depend on besides config and code: versions, the CPU, the GPU, and variables of the shell.

Each segment of training records it in the metadata of its log, and a partial state in its header. Weights and optimizer
states leave it out: equal states give equal files, so that later jobs are not repeated because of a variable that
changed no bit on this machine. The result cache restores a result only where the kernels are the same.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twoscale import tables

KEY = "twoscale.environments"
# Variables that choose other kernels, another order of sums or another precision of products.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "OMP_THREAD_LIMIT",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
FIRST = "first_iteration"

Environment = Mapping[str, Any]


def kernels(device: str) -> dict[str, Any]:
    """What selects the kernels of this process: names of variables and facts -> values, without unset variables."""
    import torch  # here, because analyses read environments without it

    cuda = {"cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()} if device == "cuda" else {}
    facts = {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()} | cuda
    return facts | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def current(device: str, processes: int, nodes: int = 1, shard: bool = False) -> dict[str, Any]:
    """The environment of this process: its `kernels`, threads and processes.

    Several nodes and a divided model are facts; one node and a whole model are left out.
    """
    import torch

    several = ({"nodes": nodes} if nodes > 1 else {}) | ({"shard": shard} if shard else {})
    return kernels(device) | {"threads": torch.get_num_threads(), "processes": processes} | several


def differences(before: Environment, now: Environment, words: tuple[str, str] = ("before", "now")) -> list[str]:
    """What differs, one text each, in alphabetical order. `words`: what the two are called."""
    names = sorted((before.keys() | now.keys()) - {FIRST})
    return [
        f"{name}: {_shown(before, name)} {words[0]}, {_shown(now, name)} {words[1]}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _shown(environment: Environment, name: str) -> str:
    return repr(environment[name]) if name in environment else "unset"


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


def distinct(logs: Iterable[Path]) -> list[Environment]:
    """The environments of segments in order, each that differs from the one before."""
    found: list[Environment] = []
    for entry in (entry for log in logs for entry in read(log)):
        if not found or differences(found[-1], entry):
            found.append(entry)
    return found


def valid(value: Any) -> list[Environment]:
    """A value from a file if it is a list of environments, otherwise none."""
    return value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else []


def read(log: Path) -> list[Environment]:
    """The environments of the segment with this log; none where it is missing or does not say."""
    try:
        return valid(json.loads(tables.metadata(log).get(KEY, "[]")))
    except (OSError, ValueError):
        return []
