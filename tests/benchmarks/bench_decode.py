"""Decoding one token at 30 loops

    python tests/benchmarks/bench_decode.py [--repeats 15]

CPU time of one thread. "Bare products" are calls of `F.linear` with each weight, as often as the
token needs it. Criteria are evaluated at every loop step but never trigger an exit. Width 768 is
the paper's architecture, for which the paper reports about 580 to 360 ms per token with exits, on
hardware that it does not name.
"""

import time
from collections.abc import Callable

import torch
from common import compare, medians, options, record, turns

from tests.products import bare_products
from tests.small import LATER_IF_LARGER
from twoscale import config
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.model.transformer import LoopedTransformer, initialise

PRODUCTS_AIMS = {64: "≤ 7", 256: "≤ 1.4", 768: "≤ 1.2"}
CRITERIA_AIMS = {64: "≤ 1.10", 768: "≤ 1.05"}  # of decisions on states
ON_STATES = ("step_norm", "acceleration")
SEED = 0


def model_of(hidden_size: int) -> LoopedTransformer:
    """The demo's model at this hidden size; at 768 the paper's."""
    values = config.preset("paper" if hidden_size == 768 else "demo")
    if hidden_size != 768:
        values["model"] |= {"hidden_size": hidden_size}
    return initialise(config.checked(values).model, SEED).eval().requires_grad_(False)


def decoder_at(model: LoopedTransformer, position: int, max_loops: int) -> Decoder:
    decoder = Decoder(model, make_criterion("fixed", max_loops), max_loops, SEED)
    decoder.prefill([0] * position)
    return decoder


def token_at(decoder: Decoder, position: int, criterion: str | None = None) -> Callable[[], None]:
    """A call that feeds one token at `position`; the tokens before it stay in the cache for the
    next call.
    """
    full = [decoder.max_loops] * len(decoder.model.config.groups)
    # no statistic is below -1, and no token takes more than max_loops
    later = criterion in LATER_IF_LARGER
    never = criterion and make_criterion(criterion, decoder.max_loops + 1 if later else -1.0)

    def call() -> None:
        decoder.position = position
        decoder.criterion = never or decoder.criterion
        _, evaluations = decoder.feed(0, None if never else full)
        assert evaluations == full, f"{criterion} let a token go"

    return call


def compare_products(hidden_size: int, max_loops: int, repeats: int) -> None:
    model = model_of(hidden_size)
    position = model.config.context_length // 4
    ours = token_at(decoder_at(model, position, max_loops), position)
    floor = bare_products(model, [max_loops] * len(model.config.groups))
    name = f"against bare products, width {hidden_size}"
    compare(name, ours, floor, repeats, PRODUCTS_AIMS[hidden_size], time.thread_time)


def compare_criteria(hidden_size: int, names: list[str], max_loops: int, repeats: int) -> None:
    """Every criterion against the same loop steps without one."""
    model = model_of(hidden_size)
    position = model.config.context_length // 4
    decoder = decoder_at(model, position, max_loops)
    rows = turns(
        [token_at(decoder, position, name) for name in (None, *names)], repeats, time.thread_time
    )
    print(f"  {1e3 * medians(rows)[0]:.1f} ms without a criterion")
    for number, name in enumerate(names, 1):
        aim = CRITERIA_AIMS[hidden_size] if name in ON_STATES else ""
        record(
            f"`{name}` against no criterion, width {hidden_size}",
            [row[number] / row[0] for row in rows],
            aim=aim,
        )
    if hidden_size == 768:
        record("a token without a criterion, width 768", [1e3 * row[0] for row in rows], "ms")


def compare_positions(
    hidden_size: int, early: int, late: int, max_loops: int, repeats: int
) -> None:
    decoder = decoder_at(model_of(hidden_size), late, max_loops)
    calls = token_at(decoder, late), token_at(decoder, early)
    name = f"position {late} against {early}, width {hidden_size}"
    compare(name, *calls, repeats, "≤ 1.3", time.thread_time)


def main() -> None:
    smoke = {"widths": [64], "largest": 64, "late": 100, "repeats": 2, "max_loops": 4}
    arguments = options(
        __doc__, smoke, widths=[64, 256, 768], largest=768, late=500, repeats=15, max_loops=30
    )
    repeats, loops = arguments.repeats, arguments.max_loops
    torch.set_num_threads(1)
    for width in arguments.widths:
        compare_products(width, loops, repeats if width == 768 else 5 * repeats)
    compare_criteria(64, list(ON_STATES), loops, 5 * repeats)
    compare_criteria(arguments.largest, [*ON_STATES, "kl"], loops, -(-repeats // 2))
    compare_positions(arguments.largest, 50, arguments.late, loops, repeats)


if __name__ == "__main__":
    main()
