"""What deciding costs in decoding, and what a position far into the text costs.

    python tests/benchmarks/bench_decode.py [--repeats 15]

1. Decoding under a rule against the same evaluations without any criterion, at the demo's size (aim: at most 1.10)
   and at d = 768 (aim: at most 1.05).
2. A token at position 500 against one at position 50, d = 768, block 512 (aim: at most 1.30).

One thread. The two of a pair decode the same token in turns, and which one goes first alternates; time is that
of the thread on its processor, so that other work on the machine does not count. Printed are the medians and
the ratio of each turn's times. The models are untrained: time does not depend on what the weights say.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale.exits.decoder import Decoder

from twoscale import config
from twoscale.exits.criteria import make_criterion
from twoscale.model.transformer import LoopedTransformer, initialise

BUDGET = 30
CRITERIA = ("step_norm", "acceleration")
SEED = 0


def of_preset(name: str) -> LoopedTransformer:
    return initialise(config.checked(config.preset(name)).model, SEED).eval().requires_grad_(False)


def seconds(run: Callable[[], object]) -> float:
    started = time.thread_time()
    run()
    return time.thread_time() - started


def compare(label: str, run: Callable[[], object], peer: Callable[[], object], turns: int) -> None:
    """Print the milliseconds of both, and their ratio."""
    pairs = []
    for turn in range(-2, turns):  # two to warm up
        if turn % 2:
            peers, runs = seconds(peer), seconds(run)
        else:
            runs, peers = seconds(run), seconds(peer)
        if turn >= 0:
            pairs.append((runs, peers))
    ratios = [a / b for a, b in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    left, right = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    print(
        f"{label}: {left:.2f} against {right:.2f} ms/token, ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f})",
        flush=True,
    )


def token_at(decoder: Decoder, position: int, told: list[int] | None = None) -> Callable[[], None]:
    """Feeds one token at a position; what lies behind it stays in the cache for the next turn."""

    def run() -> None:
        decoder.position = position
        decoder.feed(0, told)

    return run


def deciding(model: LoopedTransformer, turns: int) -> None:
    """Every rule at a threshold that no step meets, so that it decides as often as it can."""
    told = [BUDGET] * len(model.config.groups)
    for name in CRITERIA:
        decoder = Decoder(model, make_criterion(name, 1e-30, model.readout), BUDGET, SEED)
        position = model.config.context_length // 4
        decoder.prefill([0] * position)
        label = f"d = {model.config.hidden_size}, {name} against no rule"
        compare(label, token_at(decoder, position), token_at(decoder, position, told), turns)


def positions(model: LoopedTransformer, early: int, late: int, turns: int) -> None:
    decoder = Decoder(model, make_criterion("fixed", BUDGET, model.readout), BUDGET, SEED)
    told = [BUDGET] * len(model.config.groups)
    decoder.prefill([0] * late)
    label = f"d = {model.config.hidden_size}, position {late} against {early}"
    compare(label, token_at(decoder, late, told), token_at(decoder, early, told), turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    deciding(of_preset("demo"), 5 * turns)
    paper = of_preset("paper")
    deciding(paper, turns)
    positions(paper, 50, 500, turns)


if __name__ == "__main__":
    main()
