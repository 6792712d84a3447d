"""The options of the benchmarks, and times of calls that take turns. Imports no torch, whose memory some measure."""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

Call = Callable[[], object]
Clock = Callable[[], float]


def options(description: str, **defaults: object) -> argparse.Namespace:
    """The command line: an option has the type of its default, a list takes several values, and False is a switch."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag, example = f"--{name.replace('_', '-')}", default[0] if isinstance(default, list) else default
        if default is False:
            parser.add_argument(flag, action="store_true")
        else:
            several = {"nargs": "+"} if isinstance(default, list) else {}
            kind = str if example is None else type(example)
            parser.add_argument(flag, type=kind, default=default, help="default: %(default)s", **several)
    return parser.parse_args()


def clock_of(device: str, threads: int = 1) -> Clock:
    """CPU time of the process for one thread, so other work does not count; on a GPU, wall time after its work."""
    if device == "cpu":
        return time.process_time if threads == 1 else time.perf_counter
    import torch

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def seconds(call: Call, clock: Clock = time.perf_counter) -> float:
    started = clock()
    call()
    return clock() - started


def turns(calls: Sequence[Call], repeats: int, clock: Clock = time.perf_counter, warm_up: int = 1) -> list[list[float]]:
    """Seconds of every call in each turn; the order alternates, and the turns of the warm-up are discarded."""
    rows = []
    for turn in range(warm_up + repeats):
        order = [*range(len(calls))][:: -1 if turn % 2 else 1]
        times = {number: seconds(calls[number], clock) for number in order}
        rows.append([times[number] for number in range(len(calls))])
    return rows[warm_up:]


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of every column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} (from {min(values):.2f} to {max(values):.2f})"


def quartiles(values: Sequence[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4)
    return f"{median:.3f} (quartiles {low:.3f} to {high:.3f})"


def compare(
    label: str, ours: Call, peer: Call, repeats: int, aim: float | None = None, clock: Clock = time.perf_counter
) -> None:
    """Print the milliseconds of both, and their ratio."""
    rows = turns([ours, peer], repeats, clock, warm_up=2)
    left, right = (1e3 * median for median in medians(rows))
    ratio = quartiles([a / b for a, b in rows]) + ("" if aim is None else f", aim {aim:.2f}")
    print(f"{label}: {left:.2f} against {right:.2f} ms, ratio {ratio}", flush=True)
