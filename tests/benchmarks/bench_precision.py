"""The error of gradients in bfloat16

    python tests/benchmarks/bench_precision.py [--hidden-size 256] [--length 128] [--loops 4 13 40]

The error of the gradient of all looped matrices is measured in norm, relative to float64. The model is the untrained
model of `preset: paper` at width 256 on 2 × 128 random tokens. Its weights are rounded by autocast or by
`lowered_weights`. In eager mode the two forward passes are bit-identical, so the difference between their gradients is
the rounding of sums over loop steps.
"""

from contextlib import nullcontext
from itertools import product

import torch
from common import options, record
from torch import Tensor

from twoscale import config
from twoscale.config import ModelConfig
from twoscale.model.kernels import lowered_weights
from twoscale.model.noise import training_noise
from twoscale.model.transformer import initialise
from twoscale.training.recipe import autocast
from twoscale.training.state import compile_blocks

SEED = 1


def gradients(
    model_config: ModelConfig, loops: int, precision: str = "bfloat16", lowered: bool = False, compiled: bool = False
) -> dict[str, Tensor]:
    """Gradients of the looped matrices; float64 for the precision "float64"."""
    model = initialise(model_config, SEED)
    if precision == "float64":
        model.double()
    if compiled:
        torch._dynamo.reset()
        compile_blocks(model, backend="aot_eager")
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(model_config.vocab_size, (2, model_config.context_length), generator=generator)
    counts = [loops] * len(model_config.groups)
    with lowered_weights(model.blocks, torch.bfloat16) if lowered else nullcontext():
        with autocast("cpu", precision):
            loss = model.loss(model.hidden_states(tokens, counts, training_noise(SEED, 0, 0)), tokens)
        loss.backward()
    looped = ((name, p) for name, p in model.named_parameters() if name.startswith("groups.") and p.dim() > 1)
    return {name: p.grad.double() for name, p in looped}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, float]:
    """Percent of the norm of all matrices, and the largest of a matrix."""
    parts = {name: (found[name] - expected[name]).norm() for name in expected}
    norms = {name: gradient.norm() for name, gradient in expected.items()}
    whole = torch.stack([*parts.values()]).norm() / torch.stack([*norms.values()]).norm()
    return 100 * whole.item(), 100 * max(parts[name] / norms[name] for name in parts).item()


def main() -> None:
    arguments = options(
        __doc__,
        {"preset": "tiny", "hidden_size": 16, "length": 32, "loops": [1]},
        preset="paper",
        hidden_size=256,
        length=128,
        loops=[4, 13, 40],
    )
    changes = {
        "model": {"hidden_size": arguments.hidden_size, "num_heads": 4, "context_length": arguments.length},
        "tokenizer": {"name": "bytes"},
        "compute": {"device": "cpu"},
    }
    model = config.checked(config.merge(config.preset(arguments.preset), changes)).model
    for loops in arguments.loops:
        exact = gradients(model, loops, "float64")
        found = {
            (lowered, compiled): gradients(model, loops, lowered=lowered, compiled=compiled)
            for lowered, compiled in product((False, True), repeat=2)
        }
        pairs = {
            f"{'lowered' if lowered else 'autocast'}, {'compiled' if compiled else 'eager'}": (gradient, exact)
            for (lowered, compiled), gradient in found.items()
        }
        pairs["autocast against lowered, eager"] = found[False, False], found[True, False]
        for name, pair in pairs.items():
            whole, worst = difference(*pair)
            record(f"{loops} loop steps, {name}", [whole], "%")
            print(f"  a matrix: at most {worst:.2f} %")


if __name__ == "__main__":
    main()
