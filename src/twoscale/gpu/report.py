"""The report of the GPU check: rows that are on disk as soon as they are measured, as a table and as a page."""

import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch

from twoscale import tables
from twoscale.files import replacing

# Dense bf16 tensor-core peak in TFLOP/s, without sparsity, by a part of the device's name (NVIDIA's data sheets).
PEAK_TFLOPS = {"H200": 989.0, "H100 80GB HBM3": 989.0, "H100 PCIe": 756.0, "A100": 312.0}

PASSED, FAILED, SKIPPED = "passed", "FAILED", "not measured"


@dataclass(frozen=True)
class Row:
    """One quantity under one setting; `value` is None where it was not measured, and `note` says why."""

    quantity: str
    setting: str
    value: float | None
    unit: str
    verdict: str = ""  # of a check, or SKIPPED
    note: str = ""


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
    rows: list[dict[str, object]] = field(default_factory=list)
    commit: str = field(default_factory=commit)

    def add(self, section: str, rows: Iterable[Row]) -> None:
        """Append the rows of a section, one by one."""
        for row in rows:
            origin = {"device": self.device, "torch": torch.__version__, "commit": self.commit}
            self.rows.append({"section": section} | vars(row) | origin)
            print(f"{section}: {_line(row)}", flush=True)
            self._write()

    @property
    def failed(self) -> list[dict[str, object]]:
        return [row for row in self.rows if row["verdict"] == FAILED]

    def _write(self) -> None:
        frame = pd.DataFrame(self.rows, columns=list(tables.columns("gpu_check")))
        tables.write("gpu_check", frame, self.folder / "gpu-check.parquet")
        with replacing(self.folder / "gpu-check.md") as path:
            path.write_text(self._page(frame), encoding="utf-8")

    def _page(self, frame: pd.DataFrame) -> str:
        verdicts = frame["verdict"].value_counts()
        counts = ", ".join(f"{verdicts.get(verdict, 0)} {verdict}" for verdict in (PASSED, FAILED, SKIPPED))
        parts = [
            "# GPU check",
            f"Device: {self.device}. torch {torch.__version__}. Commit {self.commit or 'unknown'}. Rows: {counts}.",
            *(f"- **{row['section']}**: {row['quantity']}, {row['setting']}: {row['note']}" for row in self.failed),
        ]
        for section, rows in frame.groupby("section", sort=False):
            parts += [f"## {section}", _markdown(rows)]
        return "\n\n".join(parts) + "\n"


def _line(row: Row) -> str:
    return " ".join(
        filter(None, [f"{row.quantity}, {row.setting}:", _number(row.value), row.unit, row.verdict, row.note])
    )


def _number(value: float | None) -> str:
    return "" if value is None or pd.isna(value) else f"{value:.4g}"


def _markdown(rows: pd.DataFrame) -> str:
    lines = ["| quantity | setting | value | unit | verdict | note |", "|---|---|---|---|---|---|"]
    for row in rows.itertuples():
        cells = [row.quantity, row.setting, _number(row.value), row.unit, row.verdict, row.note.replace("|", "/")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
