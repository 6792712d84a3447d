"""make gpu-check: the tests of this folder in a process with time limits, and a table of what they
find.

The table "gpu_check", in `gpu-check.parquet` and on the page `gpu-check.md`, has a row "not
measured" for each test from the beginning, and what a test finds takes its place at once. Tests run
in another process, because a capture of a CUDA graph that fails or hangs may leave nothing usable:
after a failure or a time limit the next test gets a new one.
"""

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from twoscale import tables
from twoscale.base import InputError, first_line, replacing
from twoscale.config import Config, read_yaml
from twoscale.jobs.machine import check_cuda
from twoscale.report.release import checkout
from twoscale.workflow.runs import Runs

ROOT = Path(__file__).parents[2]
SLOWDOWN = {"cuda": 1.0, "cpu": 10.0}  # of time limits: a CPU may be slow and busy
SECONDS, START = 450.0, 60.0  # of all tests, and of the start of a process, at most
PASSED, FAILED, SKIPPED = "passed", "FAILED", "not measured"
OPTIONS = {
    "--device": ("cuda", "cuda or cpu"),
    "--model": ("paper", "preset of the measured model, or a file with a config"),
    "--seconds": (None, "time limit of all tests together"),
    "--folder": ("results", "folder of the report"),
    "--socket": (None, "descriptor of the process that waits for the results"),
}


def pytest_addoption(parser):
    for name, (default, text) in OPTIONS.items():
        parser.addoption(name, default=default, help=text)


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "limit(seconds, turn=1): time limit of a test, and when it runs"
    )


def pytest_collection_modifyitems(config, items):
    mine = [item for item in items if Path(__file__).parent in item.path.parents]
    if len(mine) == len(items):
        items.sort(key=lambda item: item.get_closest_marker("limit").kwargs.get("turn", 1))
    elif not torch.cuda.is_available():  # among other tests
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture(scope="session")
def device(request) -> str:
    return request.config.getoption("--device", "cuda")


@pytest.fixture(scope="session")
def run(request) -> Config:
    """The config of the measured model, on the device."""
    model = request.config.getoption("--model", "paper")
    values = read_yaml(Path(model)) if model.endswith(".yaml") else {"preset": model}
    device = request.config.getoption("--device", "cuda")
    return Runs(values | {"compute": {"device": device}}, ROOT / "scripts").config


@pytest.fixture
def record(request):
    """A function that adds a row of the table."""

    def add(
        quantity: str, setting: str, value: float | None, unit: str = "", **further: str
    ) -> None:
        row = {
            "quantity": quantity,
            "setting": setting,
            "value": value,
            "unit": unit,
            "verdict": "",
            "note": "",
        }
        request.node.user_properties.append(("row", row | further))

    return add


# --- the process that runs the tests --------------------------------------------------------------


def pytest_sessionstart(session):
    if (number := session.config.getoption("--socket", None)) is None:
        return
    torch.set_num_threads(1)  # of the host, which computes small models only
    session.peer, parent = socket.socket(fileno=os.dup(int(number))), os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    peer = getattr(item.session, "peer", None)
    if peer is not None and peer.recv(1) != b"1":
        pytest.skip("no time left")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if (peer := getattr(item.session, "peer", None)) is not None:
        rows = (
            [row for name, row in item.user_properties if name == "row"]
            if report.when == "call"
            else []
        )
        if report.failed:
            rows.append(name_of(item) | {"verdict": FAILED, "note": first_line(call.excinfo.value)})
        elif report.skipped:
            rows.append(name_of(item) | {"note": report.longrepr[2].removeprefix("Skipped: ")})
        peer.sendall(json.dumps([report.when, rows]).encode() + b"\n")
    return report


# --- the process that waits for them --------------------------------------------------------------


def pytest_runtestloop(session):
    config, items = session.config, list(session.items)
    if (peer := getattr(session, "peer", None)) is not None:
        peer.sendall(json.dumps(["start", []]).encode() + b"\n")
        return None
    if config.option.collectonly or not all(
        Path(__file__).parent in item.path.parents for item in items
    ):
        return None
    device, folder = config.getoption("--device"), Path(config.getoption("--folder"))
    try:
        if device == "cuda":
            check_cuda("option --device")
    except InputError as error:
        pytest.exit(f"error: {error}", returncode=1)
    report = Report(folder, device, items)
    end = time.monotonic() + float(config.getoption("--seconds") or SECONDS * SLOWDOWN[device])
    while items and time.monotonic() < end:
        items = serve(items, report, end, SLOWDOWN[device])
    session.testsfailed = len(report.failed)
    print(
        "", f"written: {folder}/gpu-check.md, {folder}/gpu-check.parquet", *report.failed, sep="\n"
    )
    return True


def serve(items, report: "Report", end: float, slowdown: float) -> list:
    """Run tests in a new process, up to one that fails or takes too long; those that are left."""
    ours, theirs = socket.socketpair()
    options = [f"{name}={items[0].config.getoption(name)}" for name in ("--device", "--model")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    command += [f"--socket={theirs.fileno()}", *(item.nodeid for item in items)]
    process = subprocess.Popen(
        command, cwd=ROOT, pass_fds=[theirs.fileno()], start_new_session=True
    )
    theirs.close()
    lines, now = ours.makefile(), time.monotonic
    rows, reason = answer(ours, lines, now() + START * slowdown, "start")
    try:
        for number, item in enumerate(items):
            limit, left = item.get_closest_marker("limit").args[0], end - now()
            if not reason:
                ours.send(b"1" if left > limit / 3 else b"0")
                rows, reason = answer(ours, lines, min(end, now() + limit * slowdown))
            rows += [name_of(item) | {"note": reason}] if reason else []
            report.replace(item, rows or [name_of(item) | {"verdict": PASSED, "note": ""}])
            if reason or any(row["verdict"] == FAILED for row in rows):
                return items[number + 1 :]
    finally:
        ours.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0 if reason else 20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return []


def answer(
    peer: socket.socket, lines, deadline: float, last: str = "teardown"
) -> tuple[list[dict], str]:
    """The rows up to the last phase of a test, and why there are no more."""
    rows, when = [], ""
    while when != last:
        peer.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            when, found = json.loads(lines.readline())
        except TimeoutError:
            return rows, "not finished within its time limit"
        except (ConnectionError, ValueError):
            return rows, "its process has ended"
        rows += found
    return rows, ""


def name_of(item) -> dict:
    """The row of a test that has found nothing."""
    setting = item.callspec.id if hasattr(item, "callspec") else ""
    name = item.originalname.removeprefix("test_").replace("_", " ")
    return {
        "quantity": name,
        "setting": setting,
        "value": None,
        "unit": "",
        "verdict": SKIPPED,
        "note": "not reached",
    }


class Report:
    """The rows of each test, on disk whenever one changes."""

    def __init__(self, folder: Path, device: str, items) -> None:
        self.folder, self.rows = folder, {item: [name_of(item)] for item in items}
        name = torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"
        self.origin = {
            "device": name,
            "torch": torch.__version__,
            "commit": checkout(ROOT)["commit"] or "",
        }
        self._write()

    def replace(self, item, rows) -> None:
        self.rows[item] = rows
        for row in rows:
            print(f"{item.path.stem}: {_line(row)}", flush=True)
        self._write()

    @property
    def failed(self) -> list[str]:
        """A line for each row that fails the check."""
        return [
            _line(row)
            for rows in self.rows.values()
            for row in rows
            if row["verdict"] in (FAILED, SKIPPED)
        ]

    def _write(self) -> None:
        sections = {item.path.stem.removeprefix("test_"): [] for item in self.rows}
        for item, rows in self.rows.items():
            sections[item.path.stem.removeprefix("test_")] += rows
        flat = [
            {"section": section} | row | self.origin
            for section, rows in sections.items()
            for row in rows
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        with tables.writing("gpu_check", self.folder / "gpu-check.parquet") as append:
            append({name: [row[name] for row in flat] for name in tables.columns("gpu_check")})
        lines = [
            "# GPU check",
            "",
            ", ".join(f"{name}: {value}" for name, value in self.origin.items()),
            "",
        ]
        lines += [f"- {line}" for line in self.failed]
        for section, rows in sections.items():
            lines += [
                "",
                f"## {section}",
                "",
                "| quantity | setting | value | unit | verdict | note |",
                "|---" * 6 + "|",
            ]
            lines += [f"| {' | '.join(map(_cell, row.values()))} |" for row in rows]
        with replacing(self.folder / "gpu-check.md") as path:
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cell(value) -> str:
    return (
        ""
        if value is None
        else f"{value:.4g}"
        if isinstance(value, float)
        else str(value).replace("|", "/")
    )


def _line(row) -> str:
    return " ".join(filter(None, map(_cell, row.values())))
