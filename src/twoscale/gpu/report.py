"""The report of the GPU check: rows that are on disk as soon as they are measured, as a table and as a page."""

import platform
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from twoscale import tables
from twoscale.base import replacing

# Dense bf16 tensor-core peak in TFLOP/s, without sparsity, by a part of the device's name (NVIDIA's data sheets).
PEAK_TFLOPS = {"H200": 989.0, "H100 80GB HBM3": 989.0, "H100 PCIe": 756.0, "A100": 312.0}

# Verdicts. That a setting does not fit the memory is a result.
PASSED, FAILED, SKIPPED, TOO_LARGE = "passed", "FAILED", "not measured", "does not fit"
FAILURES = (FAILED, SKIPPED)  # of the whole check


@dataclass(frozen=True)
class Row:
    """One quantity under one setting; `value` is None where it was not measured, and `note` says why."""

    quantity: str
    setting: str
    value: float | None
    unit: str
    verdict: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.quantity, self.setting)))


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"


def peak_tflops(name: str) -> float | None:
    """The known peak of a device with this name, None for any other."""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def commit() -> str:
    """Commit of the checkout, empty outside git."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


@dataclass
class Report:
    """Collects the rows of sections and writes all of them each time one is added.

    Attributes:
        folder: Where `gpu-check.md` and `gpu-check.parquet` (table "gpu_check") are written.
        device: Name of the device.
    """

    folder: Path
    device: str
    rows: list[tuple[str, Row]] = field(default_factory=list)  # with their sections
    commit: str = field(default_factory=commit)

    def add(self, section: str, rows: Iterable[Row]) -> None:
        """Append the rows of a section, one by one."""
        for row in rows:
            self.rows.append((section, row))
            print(f"{section}: {row.name}: {_joined(_number(row.value), row.unit, row.verdict, row.note)}", flush=True)
            self._write()

    @property
    def failed(self) -> list[str]:
        """A line for each row that fails the check."""
        rows = ((section, row) for section, row in self.rows if row.verdict in FAILURES)
        return [f"{section}: {row.name}: {_joined(row.verdict, row.note)}" for section, row in rows]

    def _write(self) -> None:
        origin = {"device": self.device, "torch": torch.__version__, "commit": self.commit}
        rows = [{"section": section} | vars(row) | origin for section, row in self.rows]
        with tables.writing("gpu_check", self.folder / "gpu-check.parquet") as append:
            append({name: [row[name] for row in rows] for name in tables.columns("gpu_check")})
        with replacing(self.folder / "gpu-check.md") as path:
            path.write_text(self._page(), encoding="utf-8")

    def _page(self) -> str:
        verdicts = Counter(row.verdict for _, row in self.rows)
        counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in (PASSED, *FAILURES))
        parts = [
            "# GPU check",
            f"Device: {self.device}. torch {torch.__version__}. Commit {self.commit or 'unknown'}. Rows: {counts}.",
            *(f"- {line}" for line in self.failed),
        ]
        for section in dict(self.rows):
            parts += [f"## {section}", _markdown([row for name, row in self.rows if name == section])]
        return "\n\n".join(parts) + "\n"


def _joined(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _markdown(rows: Iterable[Row]) -> str:
    lines = ["| quantity | setting | value | unit | verdict | note |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = [row.quantity, row.setting, _number(row.value), row.unit, row.verdict, row.note.replace("|", "/")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
