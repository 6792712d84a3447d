"""Where the time of one token goes, and that of a training iteration: the costliest kernels, and
the gaps between them.

    python -m tests.benchmarks.profile_token paper
    python -m tests.benchmarks.profile_token tiny --device cpu

On CUDA these are the kernels of captured loop steps in float32 and bfloat16, on a CPU the
operators.
"""

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests import speed
from twoscale import config as configs
from twoscale.base import replacing
from twoscale.config import Config, ConfigSlice
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.jobs import command
from twoscale.workflow.runs import Runs

TOKENS, ITERATIONS, SHOWN = 4, 10, 20
ATTENTION = re.compile(r"attention|flash|fmha|sdp|cudnn.*mha", re.IGNORECASE)


def of_tokens(run: Config, dtype: str) -> list[str]:
    """Lines on tokens that take all loop steps without decisions, read by an untrained model."""
    device = run.compute.device
    model = (
        speed.any_model(run.model).to(device, getattr(torch, dtype)).eval().requires_grad_(False)
    )
    full = make_criterion("fixed", run.exits.max_loops)
    options = DecoderOptions(replay=device == "cuda", compile=device == "cuda")
    decoder = Decoder(model, full, run.exits.max_loops, run.seed, options)
    middle = run.model.context_length // 2
    decoder.prefill([0] * middle)
    loops = [run.exits.max_loops] * len(run.model.groups)

    def read() -> None:
        decoder.rewind(middle)
        for _ in range(TOKENS):
            decoder.feed(0, loops)

    title = f"one token, {run.exits.max_loops} loop steps, {dtype}"
    return lines_of(title, measured(read, device), TOKENS, device)


def of_training(run: Config) -> list[str]:
    """Lines on training iterations as configured, on random tokens."""
    identity = configs.training_identity(run)
    settings = ConfigSlice(identity | {"train": identity["train"] | configs.runtime(run)})
    trainer, state = speed.start(settings)

    def iterate() -> None:
        for _ in range(ITERATIONS):
            trainer.iterate(state)
        trainer.log_last_iteration(state)

    way = "compiled" if run.train.compiles(run.compute.device) else "eager"
    title = f"one training iteration, {way}, {run.train.batch_size} sequences"
    return lines_of(title, measured(iterate, run.compute.device), ITERATIONS, run.compute.device)


def measured(call: Callable[[], None], device: str) -> tuple[float, list[Any]]:
    """Seconds of a call after a first one, not profiled, and the events of another one."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    synchronise()
    began = time.perf_counter()
    call()
    synchronise()
    seconds = time.perf_counter() - began
    kinds = [ProfilerActivity.CUDA] if device == "cuda" else [ProfilerActivity.CPU]
    with profile(activities=kinds) as profiler:
        call()
        synchronise()
    return seconds, profiler.key_averages()


def lines_of(title: str, found: tuple[float, list[Any]], count: int, device: str) -> list[str]:
    """A section of the page; times are per token or iteration, of which there were `count`."""
    seconds, averages = found
    name = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = sorted(averages, key=lambda row: getattr(row, name), reverse=True)
    rows = [row for row in rows if getattr(row, name) > 0]
    busy, wall = sum(getattr(row, name) for row in rows) / count, 1e6 * seconds / count
    calls = sum(row.count for row in rows) / count
    attention = [row.key for row in rows if ATTENTION.search(row.key)]
    idle = max(0.0, wall - busy)
    lines = [f"## {title}", ""]
    lines += [
        f"{wall / 1e3:.2f} ms: {calls:.0f} kernels take {busy / 1e3:.2f} ms, none runs in"
        f" {idle / 1e3:.2f} ms."
    ]
    lines += [f"Attention: {', '.join(attention) or 'no fused kernel'}.", ""]
    lines += ["| kernel | calls | µs a call | µs in all | share |", "|---|---|---|---|---|"]
    for row in rows[:SHOWN]:
        total = getattr(row, name)
        cells = [
            f"`{row.key.replace('|', '/')[:120]}`",
            f"{row.count / count:g}",
            f"{total / row.count:.1f}",
        ]
        cells += [f"{total / count:.0f}", f"{total / count / wall:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def main(arguments: argparse.Namespace) -> None:
    name = arguments.model
    values = configs.read_yaml(Path(name)) if name.endswith(".yaml") else {"preset": name}
    values = configs.merge(
        values, {"compute": {"device": arguments.device}} if arguments.device else {}
    )
    run = Runs(values, Path("scripts")).config
    on_cuda = run.compute.device == "cuda"
    lines = [
        f"# Profile on {torch.cuda.get_device_name() if on_cuda else 'a CPU'}, torch"
        f" {torch.__version__}",
        "",
    ]
    parts: list[Callable[[], list[str]]] = [
        lambda: of_tokens(run, "float32"),
        lambda: of_training(run),
    ]
    for part in (parts[0], lambda: of_tokens(run, "bfloat16"), parts[1]):
        lines += part()
        print("\n".join(lines[-30:]), flush=True)
        if arguments.page:  # complete so far, whenever this process ends
            with replacing(arguments.page) as path:
                path.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="preset, or a YAML file with a config")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="overrides compute.device")
    parser.add_argument("--page", type=Path, help="file for the page")
    command.run(main, parser)
