"""One optimizer step

    python tests/benchmarks/bench_training.py [--nanogpt model.py] [--repeats 5]

Batch, forward pass, loss, backward pass, clipping and AdamW, for `groups: []` in float32 on two
threads, in tokens per second: if a ratio is above 1, our program is faster. "Bare products" are
`torch.mm` products of the same sizes as the linear layers and their gradients. Each program runs in
its own process, and the processes take turns.
"""

import contextlib
import importlib.util
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from common import options, record
from torch import Tensor

THREADS = 2
VOCAB_SIZE = 50257
PADDED = 50304
SHAPES = ["384,6,4,256", "768,12,2,512"]  # hidden size, heads, sequences, tokens
SEED = 0
WARM_UP = 2

Step = Callable[[], object]


def tokens(vocab_size: int) -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, vocab_size, 200_000).astype(np.uint16)


def preset_step(name: str, batch_size: int, **changes: object) -> Step:
    """One iteration of this project's training of a preset with changes of its model."""
    from twoscale import config
    from twoscale.data.batches import HeldOut
    from twoscale.model.transformer import initialise
    from twoscale.training.state import TrainingState, make_optimizer
    from twoscale.training.trainer import Trainer, TrainingData

    run = config.checked(config.preset(name))
    recipe = {
        "cpu_threads": THREADS,
        "compile": False,
        "batch_size": batch_size,
        "micro_batches": 1,
    }
    model, train = run.model.model_copy(update=changes), run.train.model_copy(update=recipe)
    settings = SimpleNamespace(seed=SEED, device="cpu", model=model, train=train)
    none = torch.empty(0, dtype=torch.int64)
    trainer = Trainer(settings, TrainingData(tokens(model.vocab_size), HeldOut(none, none, (), ())))
    weights = initialise(model, SEED)
    state = TrainingState(weights, make_optimizer(weights, train), 0, 0)
    return lambda: trainer.iterate(state)


def plain_step(hidden_size: int, num_heads: int, batch_size: int, length: int) -> Step:
    sizes = {"hidden_size": hidden_size, "num_heads": num_heads, "context_length": length}
    return preset_step("paper", batch_size, groups=(), vocab_size=VOCAB_SIZE, **sizes)


def nanogpt_step(path: str, hidden_size: int, num_heads: int, batch_size: int, length: int) -> Step:
    """The step of nanoGPT's train.py, with the model and the optimizer of its model.py."""
    spec = importlib.util.spec_from_file_location("nanogpt", path)
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    sizes = {
        "block_size": length,
        "vocab_size": PADDED,
        "n_layer": 12,
        "n_head": num_heads,
        "n_embd": hidden_size,
    }
    model = nanogpt.GPT(nanogpt.GPTConfig(**sizes, bias=False, dropout=0.0))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
    data = torch.from_numpy(tokens(VOCAB_SIZE).astype(np.int64))

    def batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - length, (batch_size,))
        return tuple(
            torch.stack([data[i + shift : i + shift + length] for i in starts]) for shift in (0, 1)
        )

    def step() -> None:
        _, loss = model(*batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def products_step(hidden_size: int, num_heads: int, batch_size: int, length: int) -> Step:
    """The matrix products of the linear layers: y = x w^T, and the gradients g w and g^T x."""
    c, rows = hidden_size, batch_size * length
    shapes = [(c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)] * 12 + [(c, PADDED)]
    operands = [
        (torch.randn(rows, i), torch.randn(o, i), torch.randn(rows, o))
        for i, o in dict.fromkeys(shapes)
    ]
    by_shape = dict(zip(dict.fromkeys(shapes), operands, strict=True))

    def step() -> None:
        for shape in shapes:
            x, w, g = by_shape[shape]
            torch.mm(x, w.T)
            torch.mm(g, w)
            torch.mm(g.T, x)

    return step


def worker(kind: str, *arguments: str) -> None:
    """Run one step for each line of stdin and print its seconds; at the end, the peak memory in
    bytes.
    """
    torch.set_num_threads(THREADS)
    makers = {
        "plain": plain_step,
        "products": products_step,
        "nanogpt": nanogpt_step,
        "preset": preset_step,
    }
    with contextlib.redirect_stdout(sys.stderr):
        step = makers[kind](*(int(a) if a.isdigit() else a for a in arguments))
    for _ in sys.stdin:
        started = time.perf_counter()
        step()
        print(time.perf_counter() - started, flush=True)
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


@dataclass(frozen=True)
class Model:
    """A model in a process of its own, all with the same environment."""

    process: subprocess.Popen

    @classmethod
    def start(cls, *arguments: object) -> "Model":
        command = [sys.executable, __file__, "--worker", *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return cls(subprocess.Popen(command, text=True, bufsize=1, **pipes))

    def seconds(self) -> float:
        print(file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def peak_bytes(self) -> int:
        """Ends the process."""
        return int(self.process.communicate()[0])


def compare(shape: str, peers: Mapping[str, tuple[object, ...]], repeats: int) -> None:
    """Record the speed of `groups: []` over each peer."""
    sizes = shape.split(",")
    models = [
        Model.start("plain", *sizes),
        *(Model.start(*peer, *sizes) for peer in peers.values()),
    ]
    ours, *others = zip(
        *([model.seconds() for model in models] for _ in range(WARM_UP + repeats)), strict=True
    )
    print(
        f"{shape}: peak memory {', '.join(f'{model.peak_bytes() / 1e9:.2f}' for model in models)}"
        f" GB"
    )
    for name, times in zip(peers, others, strict=True):
        speed_ups = [theirs / mine for mine, theirs in zip(ours, times, strict=True)][WARM_UP:]
        label = "width {0}, {2} × {3} tokens, against {name}".format(*sizes, name=name)
        record(
            label, speed_ups, aim="≥ 1.6 with AVX512, ≥ 1.15 with AVX2" if "nanoGPT" in name else ""
        )


def main() -> None:
    smoke = {"shapes": ["16,2,2,8"], "repeats": 2, "preset": "tiny"}
    nanogpt = os.environ.get("NANOGPT")
    arguments = options(
        __doc__, smoke, nanogpt=nanogpt, shapes=SHAPES, repeats=5, preset="paper", worker=[None]
    )
    if arguments.worker != [None]:
        return worker(*arguments.worker)
    peers = {"bare products": ("products",)}
    if arguments.nanogpt:
        peers["nanoGPT's `model.py`"] = "nanogpt", arguments.nanogpt
    for shape in arguments.shapes:
        compare(shape, peers, arguments.repeats)
    looped = Model.start("preset", arguments.preset, 2)
    looped.seconds()
    record(
        "peak memory, paper's model, 2 × 512 tokens", [looped.peak_bytes() / 1e9], "GB", "≤ 6.4 GB"
    )
    return None


if __name__ == "__main__":
    main()
