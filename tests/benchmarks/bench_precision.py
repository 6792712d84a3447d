"""The error of gradients in bfloat16 against float64, with weights lowered by autocast and by `lowered_weights`.

    python tests/benchmarks/bench_precision.py [--hidden-size 256] [--length 128] [--loops 4 13 40]

The untrained model of `preset: paper` at another width, 2 sequences of random tokens, on the CPU. Printed is the error
of the gradient of all looped matrices in norm, and the largest one of a matrix. In eager mode both have the same
forward pass bit for bit, so that the difference of their gradients is the rounding of sums over loop steps.
"""

from contextlib import nullcontext

import torch
from common import options
from torch import Tensor

from twoscale import config
from twoscale.config import ModelConfig
from twoscale.model.linear import lowered_weights
from twoscale.model.noise import training_noise
from twoscale.model.transformer import initialise
from twoscale.training.compilation import compile_blocks
from twoscale.training.recipe import autocast

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


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> str:
    parts = {name: (found[name] - expected[name]).norm() for name in expected}
    norms = {name: gradient.norm() for name, gradient in expected.items()}
    whole = torch.stack([*parts.values()]).norm() / torch.stack([*norms.values()]).norm()
    worst = max(parts[name] / norms[name] for name in parts)
    return f"{whole:.2%} (a matrix: {worst:.2%})"


def main() -> None:
    arguments = options(__doc__, hidden_size=256, length=128, loops=[4, 13, 40])
    changes = {
        "model": {"hidden_size": arguments.hidden_size, "num_heads": 4, "context_length": arguments.length},
        "tokenizer": {"name": "bytes"},
        "compute": {"device": "cpu"},
    }
    model = config.checked(config.merge(config.preset("paper"), changes)).model
    for loops in arguments.loops:
        exact = gradients(model, loops, "float64")
        found = {
            (lowered, compiled): gradients(model, loops, lowered=lowered, compiled=compiled)
            for lowered in (False, True)
            for compiled in (False, True)
        }
        print(f"{loops} loop steps, against float64:")
        print(f"  float32             {difference(gradients(model, loops, 'float32'), exact)}")
        for (lowered, compiled), gradient in found.items():
            name = f"{'lowered' if lowered else 'autocast'}, {'compiled' if compiled else 'eager'}"
            print(f"  {name:<20}{difference(gradient, exact)}")
        print(f"  autocast against lowered, eager: {difference(found[False, False], found[True, False])}", flush=True)


if __name__ == "__main__":
    main()
