"""Options, turns and recorded rows of the benchmarks. Imports no torch, because some measure their
memory.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # for the folder `tests`
Call = Callable[[], object]
Clock = Callable[[], float]

ROWS = "BENCHMARK_ROWS"  # environment variable: the file that collects the rows of a script


def options(
    description: str, smoke: Mapping[str, object], **defaults: object
) -> argparse.Namespace:
    """The command line: an option has the type of its default, and a list takes several values.

    `smoke`: the defaults under `--smoke`, which tries the script in seconds.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes: tries the script, measures nothing"
    )
    for name, default in defaults.items():
        flag, example = (
            f"--{name.replace('_', '-')}",
            default[0] if isinstance(default, list) else default,
        )
        if default is False:
            parser.add_argument(flag, action="store_true")
        else:
            several = {"nargs": "+"} if isinstance(default, list) else {}
            kind = str if example is None else type(example)
            parser.add_argument(
                flag, type=kind, default=default, help="default: %(default)s", **several
            )
    if parser.parse_known_args()[0].smoke:
        parser.set_defaults(**smoke)
    return parser.parse_args()


def record(name: str, values: Sequence[float], unit: str = "ratio", aim: str = "") -> None:
    """Print the median and quartiles of the turns of one row, and write them to the file of rows,
    if there is one.
    """
    low, median, high = (
        statistics.quantiles(values, n=4, method="inclusive")
        if len(values) > 1
        else (None, *values, None)
    )
    quartiles = "" if low is None else f" (quartiles {low:.4g} to {high:.4g})"
    print(f"{name}: {median:.4g} {unit}{quartiles}{aim and f', aim {aim}'}", flush=True)
    if path := os.environ.get(ROWS):
        numbers = {"median": median, "quartile_1": low, "quartile_3": high}
        with Path(path).open("a") as file:
            print(json.dumps({"name": name, "unit": unit} | numbers | {"aim": aim}), file=file)


def clock_of(device: str, threads: int = 1) -> Clock:
    """CPU time of the process for one thread, so other work does not count; on a GPU, wall time
    after its work.
    """
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


def turns(
    calls: Sequence[Call], repeats: int, clock: Clock = time.perf_counter, warm_up: int = 1
) -> list[list[float]]:
    """Seconds of every call in each turn; the order alternates, and the turns of the warm-up are
    discarded.
    """
    rows = []
    for turn in range(warm_up + repeats):
        order = [*range(len(calls))][:: -1 if turn % 2 else 1]
        times = {number: seconds(calls[number], clock) for number in order}
        rows.append([times[number] for number in range(len(calls))])
    return rows[warm_up:]


def ratios(rows: Sequence[Sequence[float]]) -> list[float]:
    """The first column over the second."""
    return [ours / peer for ours, peer, *_ in rows]


def medians(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of every column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def compare(
    name: str, ours: Call, peer: Call, repeats: int, aim: str = "", clock: Clock = time.perf_counter
) -> None:
    """Record the ratio of two calls that take turns, and print the milliseconds of both."""
    rows = turns([ours, peer], repeats, clock, warm_up=2)
    record(name, ratios(rows), aim=aim)
    print(
        "  {:.2f} against {:.2f} ms".format(*(1e3 * median for median in medians(rows))), flush=True
    )
