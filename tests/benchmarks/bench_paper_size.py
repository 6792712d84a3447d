"""Milliseconds per token of every exit criterion on the paper's full-size architecture, on the CPU.

    python tests/benchmarks/bench_paper_size.py [--repeats 5] [--threads 1 2] [--quick]

Each criterion decides at every loop step and never lets a token go, so every token takes all 30 loop steps of the three
groups. Beside them: the same loop steps without a criterion, and the floor, the bare matrix products of a token. All of
them decode one token at a quarter of the context in turn, so a drift of the machine affects all alike. Printed is a
table of medians with quartiles, and each median over the floor.

The model is untrained: time does not depend on the values of its weights, but exits would, so nothing here says what a
criterion saves. The paper's 580 -> 360 ms per token (Fig. 4 (i)) are acceleration at two thresholds with exits, on
other hardware and in other code. `--quick` tries the script on the model of `preset: tiny`.
"""

import os
import statistics
from collections.abc import Callable

import torch
from common import options, turns

from twoscale import config
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.products import bare_products
from twoscale.model.interface import LoopedModel
from twoscale.model.transformer import initialise

SEED = 0


def calls(model: LoopedModel, max_loops: int) -> dict[str, Callable[[], object]]:
    """One token each: the floor, the loops without a criterion, and every criterion that needs no exit gate."""
    full = [max_loops] * len(model.config.groups)
    decoder = Decoder(model, make_criterion("fixed", max_loops), max_loops, SEED)
    decoder.prefill([0] * (model.config.context_length // 4))
    position = decoder.position

    def token(name: str | None) -> Callable[[], None]:
        # no statistic is below -1, and no token takes more than max_loops
        never = name and make_criterion(name, max_loops + 1 if CRITERIA[name].larger_is_later else -1.0)

        def call() -> None:
            decoder.rewind(position)
            decoder.criterion = never or decoder.criterion
            _, evaluations = decoder.feed(0, None if never else full)
            assert evaluations == full, f"{name} let a token go"

        return call

    named = {"bare matrix products": bare_products(model, full), "no criterion": token(None)}
    return named | {name: token(name) for name, criterion in CRITERIA.items() if not criterion.needs_gate}


def main() -> None:
    arguments = options(__doc__, repeats=5, threads=[1, 2], quick=False)
    run = config.checked(config.preset("tiny" if arguments.quick else "paper"))
    model = initialise(run.model, SEED).eval().requires_grad_(False)
    timed = calls(model, run.exits.max_loops)
    results = {}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        rows = turns([*timed.values()], arguments.repeats)
        times = torch.tensor(rows).T * 1e3
        results[threads] = dict(zip(timed, times.tolist(), strict=True))
        print(f"threads: {threads}, load average {os.getloadavg()[0]:.1f}", flush=True)
    print(
        f"\nms/token at {run.exits.max_loops} loop steps per group, {arguments.repeats} tokens each: median (quartiles)"
    )
    print("\n|  | " + " | ".join(f"threads: {n} | over the products" for n in results) + " |")
    print("|---|" + "---:|" * 2 * len(results))
    for name in timed:
        cells = []
        for times in results.values():
            low, median, high = statistics.quantiles(times[name], n=4)
            floor = statistics.median(times["bare matrix products"])
            cells += [f"{median:.1f} ({low:.1f}-{high:.1f})", f"{median / floor:.2f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\nThe paper, Fig. 4 (i): about 580 -> 360 ms/token under acceleration, with exits.")


if __name__ == "__main__":
    main()
