"""The cost of decoding beside its matrix products, of exit decisions, and of a late position.

    python tests/benchmarks/bench_decode.py [--repeats 20]

1. Decoding one token at 30 loops against the bare matrix products of its weights (`twoscale.exits.products`), at
   hidden sizes 64, 256 and 768.
2. Decoding under an exit criterion against the same evaluations without one, at the demo's size (aim: at most
   1.10) and at hidden size 768 (aim: at most 1.05).
3. A token at position 500 against one at position 50, hidden size 768, context length 512 (aim: at most 1.30).

One thread. The two of a pair decode the same token; they alternate, and so does their order. Time is the CPU time
of the thread, so other work on the machine does not count. Printed are the median times, and the median and
quartiles of the ratio of each repeat. The models are untrained: time does not depend on the values of the weights.
"""

import time
from collections.abc import Callable

import torch
from common import compare, options

from twoscale import config
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.products import bare_products
from twoscale.model.transformer import LoopedTransformer, initialise

MAX_LOOPS = 30
PRODUCTS_AIMS = {64: 7.0, 256: 1.6, 768: 1.2}  # hidden size -> largest ratio of decoding to bare products
CRITERIA = ("step_norm", "acceleration")
NEVER = 1e-30  # a threshold that no step is below
SEED = 0


def preset_model(name: str) -> LoopedTransformer:
    return initialise(config.checked(config.preset(name)).model, SEED).eval().requires_grad_(False)


def model_of(hidden_size: int) -> LoopedTransformer:
    """The demo's model at this hidden size; at 768 the paper's."""
    if hidden_size == 768:
        return preset_model("paper")
    values = config.preset("demo")
    values["model"] = values["model"] | {"hidden_size": hidden_size}
    return initialise(config.checked(values).model, SEED).eval().requires_grad_(False)


def per_token(label: str, ours: Callable, peer: Callable, repeats: int, aim: float | None = None) -> None:
    compare(f"a token, {label}", ours, peer, repeats, aim, clock=time.thread_time)


def token_at(decoder: Decoder, position: int, evaluations: list[int] | None = None) -> Callable[[], None]:
    """A call that feeds one token at `position`; the tokens before it stay in the cache for the next call."""

    def call() -> None:
        decoder.position = position
        decoder.feed(0, evaluations)

    return call


def compare_products(hidden_size: int, aim: float, repeats: int) -> None:
    """Full loops at a quarter of the context against the bare products."""
    model = model_of(hidden_size)
    evaluations = [MAX_LOOPS] * len(model.config.groups)
    position = model.config.context_length // 4
    decoder = Decoder(model, make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, SEED)
    decoder.prefill([0] * position)
    label = f"hidden size {hidden_size}, decoding against bare products"
    per_token(label, token_at(decoder, position, evaluations), bare_products(model, evaluations), repeats, aim)


def compare_criteria(model: LoopedTransformer, repeats: int, aim: float) -> None:
    """Each criterion at a threshold that is never met, so that it decides as often as possible."""
    evaluations = [MAX_LOOPS] * len(model.config.groups)
    position = model.config.context_length // 4
    for name in CRITERIA:
        decoder = Decoder(model, make_criterion(name, NEVER), MAX_LOOPS, SEED)
        decoder.prefill([0] * position)
        label = f"hidden size {model.config.hidden_size}, {name} against no criterion"
        per_token(label, token_at(decoder, position), token_at(decoder, position, evaluations), repeats, aim)


def compare_positions(model: LoopedTransformer, early: int, late: int, repeats: int) -> None:
    decoder = Decoder(model, make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, SEED)
    evaluations = [MAX_LOOPS] * len(model.config.groups)
    decoder.prefill([0] * late)
    label = f"hidden size {model.config.hidden_size}, position {late} against {early}"
    per_token(label, token_at(decoder, late, evaluations), token_at(decoder, early, evaluations), repeats, 1.3)


def main() -> None:
    arguments = options(__doc__, repeats=20)
    repeats = arguments.repeats
    torch.set_num_threads(1)
    for size, aim in PRODUCTS_AIMS.items():
        compare_products(size, aim, repeats if size == 768 else 5 * repeats)
    compare_criteria(preset_model("demo"), 5 * repeats, 1.1)
    paper = preset_model("paper")
    compare_criteria(paper, repeats, 1.05)
    compare_positions(paper, 50, 500, repeats)


if __name__ == "__main__":
    main()
