"""One whole optimizer step against a plain GPT, against the matrix products in it, and against an older checkout.

    python tests/benchmarks/bench_training.py [--nanogpt model.py] [--before CHECKOUT] [--repeats 15]

1. `groups: []` against nanoGPT's own file, tokens per second at two shapes (aim: at least 1.0). A step is the batch,
   forward pass, loss, backward pass, clipping and AdamW. Without `--nanogpt` this part is left out.
2. The same step against its bare matrix products: each product of a linear layer, and the two of its gradient, by
   `torch.mm`. No aim.
3. A step of the demo, looped, against the same step of an older checkout (aim: at least 1.4). Without `--before` only
   its tokens per second are printed.
4. Peak memory of a step of the paper's model on 2 x 512 tokens.
5. A step of the preset `overnight`, compiled in float32 and in bfloat16, against the same step in float32 without
   compilation. No aim: it depends on the processor.

Each model lives in a process of its own, so none shares memory or an allocator with another; the processes take turns,
and the one that waits does nothing. Printed are medians, and the median and quartiles of the ratio of each turn.
"""

import contextlib
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from common import options
from torch import Tensor

from twoscale.config import ModelConfig, TrainConfig

THREADS = 2
VOCAB_SIZE = 50257
PADDED = 50304
SHAPES = ((384, 6, 4, 256), (768, 12, 2, 512))  # hidden size, heads, sequences, tokens
SEED = 0
WARM_UP = 2
SOURCE = Path(__file__).parents[2] / "src"
# as all jobs of this checkout's workflow have it (workflow/rules/common.smk)
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}

Step = Callable[[], object]


def tokens(vocab_size: int) -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, vocab_size, 200_000).astype(np.uint16)


def step_of(model: ModelConfig, train: TrainConfig) -> Step:
    """One iteration of this project's training of `model`, a preset with changes."""
    from twoscale.data.batches import HeldOut
    from twoscale.model.transformer import initialise
    from twoscale.training.compilation import compile_blocks
    from twoscale.training.recipe import make_optimizer
    from twoscale.training.state import TrainingState
    from twoscale.training.trainer import Trainer, TrainingData

    config = SimpleNamespace(seed=SEED, device="cpu", model=model, train=train)
    none = torch.empty(0, dtype=torch.int64)
    trainer = Trainer(config, TrainingData(tokens(model.vocab_size), HeldOut(none, none, (), ())))
    weights = initialise(model, SEED)
    if train.compile:
        compile_blocks(weights)
    state = TrainingState(weights, make_optimizer(weights, train), 0, 0)
    return lambda: trainer.iterate(state)


def preset_step(name: str, batch_size: int | None = None, train: Mapping[str, object] = {}, **model: object) -> Step:
    from twoscale import config

    run = config.checked(config.preset(name))
    changes = {} if batch_size is None else {"batch_size": batch_size, "micro_batches": 1}
    recipe = run.train.model_copy(update={"cpu_threads": THREADS, "compile": False} | changes | train)
    return step_of(run.model.model_copy(update=model), recipe)


def compiled_step(name: str, precision: str) -> Step:
    return preset_step(name, train={"compile": True, "precision": precision})


def plain_step(hidden_size: int, num_heads: int, batch_size: int, length: int) -> Step:
    sizes = {"hidden_size": hidden_size, "num_heads": num_heads, "context_length": length}
    return preset_step("paper", batch_size, groups=(), vocab_size=VOCAB_SIZE, **sizes)


def nanogpt_step(path: str, hidden_size: int, num_heads: int, batch_size: int, length: int) -> Step:
    """The step of nanoGPT's train.py, with the model and the optimizer of its model.py."""
    spec = importlib.util.spec_from_file_location("nanogpt", path)
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    sizes = {"block_size": length, "vocab_size": PADDED, "n_layer": 12, "n_head": num_heads, "n_embd": hidden_size}
    model = nanogpt.GPT(nanogpt.GPTConfig(**sizes, bias=False, dropout=0.0))
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cpu")
    data = torch.from_numpy(tokens(VOCAB_SIZE).astype(np.int64))

    def batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - length, (batch_size,))
        return tuple(torch.stack([data[i + shift : i + shift + length] for i in starts]) for shift in (0, 1))

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
    operands = [(torch.randn(rows, i), torch.randn(o, i), torch.randn(rows, o)) for i, o in dict.fromkeys(shapes)]
    by_shape = dict(zip(dict.fromkeys(shapes), operands, strict=True))

    def step() -> None:
        for shape in shapes:
            x, w, g = by_shape[shape]
            torch.mm(x, w.T)
            torch.mm(g, w)
            torch.mm(g.T, x)

    return step


def worker(kind: str, *arguments: str) -> None:
    """Run one step for each line of stdin and print its seconds; at the end, the peak memory in bytes."""
    torch.set_num_threads(THREADS)
    makers = {
        "plain": plain_step,
        "products": products_step,
        "nanogpt": nanogpt_step,
        "preset": preset_step,
        "compiled": compiled_step,
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
    """A model in a process of its own. `source`: the folder that has the package `twoscale`."""

    process: subprocess.Popen

    @classmethod
    def start(cls, *arguments: object, source: Path = SOURCE) -> "Model":
        command = [sys.executable, __file__, "--worker", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(source)}
        if source == SOURCE and arguments[0] != "nanogpt":
            environment |= ALLOCATOR
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return cls(subprocess.Popen(command, env=environment, text=True, bufsize=1, **pipes))

    def seconds(self) -> float:
        print(file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def peak_bytes(self) -> int:
        """Ends the process."""
        return int(self.process.communicate()[0])


def compare(label: str, ours: Model, peer: Model, tokens_per_step: int, repeats: int, aim: str) -> None:
    """Print the tokens per second of both, and their ratio."""
    turns = [(ours.seconds(), peer.seconds()) for _ in range(WARM_UP + repeats)][WARM_UP:]
    low, ratio, high = statistics.quantiles([theirs / mine for mine, theirs in turns], n=4)
    left, right = (tokens_per_step / statistics.median(times) for times in zip(*turns, strict=True))
    gigabytes = " and ".join(f"{model.peak_bytes() / 1e9:.2f}" for model in (ours, peer))
    print(f"{label}: {left:.0f} against {right:.0f} tokens/s, ratio {ratio:.2f}", end=" ")
    print(f"(quartiles {low:.2f} to {high:.2f}){aim}, {gigabytes} GB", flush=True)


def main() -> None:
    paths = {"nanogpt": os.environ.get("NANOGPT"), "before": os.environ.get("BEFORE")}
    arguments = options(__doc__, **paths, repeats=15, worker=[None])
    if arguments.worker != [None]:
        worker(*arguments.worker)
        return
    repeats = arguments.repeats
    for shape in SHAPES:
        size, label = shape[2] * shape[3], f"hidden size {shape[0]}, {shape[2]} x {shape[3]} tokens, groups []"
        if arguments.nanogpt:
            peer = Model.start("nanogpt", arguments.nanogpt, *shape)
            compare(f"{label} against nanoGPT", Model.start("plain", *shape), peer, size, repeats, ", aim 1.0")
        products = Model.start("products", *shape)
        compare(f"{label} against bare products", Model.start("plain", *shape), products, size, repeats, "")
    demo = Model.start("preset", "demo")
    if arguments.before:
        before = Model.start("preset", "demo", source=Path(arguments.before) / "src")
        compare("demo against the older checkout", demo, before, 8 * 128, repeats, ", aim 1.4")
    else:
        median = statistics.median([demo.seconds() for _ in range(WARM_UP + repeats)][WARM_UP:])
        print(f"demo: {8 * 128 / median:.0f} tokens/s", flush=True)
    paper = Model.start("preset", "paper", 2)
    paper.seconds()
    print(f"paper, 2 x 512 tokens: {paper.peak_bytes() / 1e9:.2f} GB", flush=True)
    for precision in ("float32", "bfloat16"):
        compiled, eager = Model.start("compiled", "overnight", precision), Model.start("preset", "overnight")
        compare(f"overnight, compiled in {precision}, against eager in float32", compiled, eager, 16 * 256, repeats, "")


if __name__ == "__main__":
    main()
