"""The cost of exits: evaluations, and readouts for `kl`

    python tests/benchmarks/bench_exits.py [--hidden-size 256] [--device cpu]

8 × 256 tokens, width 256, at most 8 loops, CPU time. The time of a text under a criterion, over the
time of all its loop steps, is compared with the ratio expected from its evaluations. `kl` never
triggers an exit here; its time is compared with the time of the same loops, heads and softmax.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from common import clock_of, options, record, turns
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.dynamics import vectors
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.parallel import KVCache, LoopCounts, TextKV, evaluate
from twoscale.model.interface import CausalAttention, run_stages
from twoscale.model.transformer import LoopedTransformer, initialise

Times = dict[str, float]  # name of a call -> its seconds in one round

NEVER = 1e-30  # a threshold that no statistic is below
SHARES = (0.4, 0.8)  # of the statistics of full loops, below the two thresholds of a criterion


@dataclass(frozen=True)
class Benchmark:
    """An untrained model, a text (B, T), noise (B, T, C) drawn in advance, and how often to time
    each call.
    """

    model: LoopedTransformer
    tokens: Tensor
    noise_array: Tensor
    max_loops: int
    rounds: int

    @property
    def num_groups(self) -> int:
        return len(self.model.config.groups)

    def noise(self, group: int, k: int, like: Tensor) -> Tensor:
        return self.noise_array[: like.shape[0], : like.shape[1]]

    def evaluate(self, criterion: ExitCriterion) -> tuple[Tensor, LoopCounts]:
        return evaluate(self.model, self.tokens, criterion, self.max_loops, self.noise)

    def time(self, calls: dict[str, Callable[[], object]]) -> list[Times]:
        """Seconds of every call in each round."""
        rows = turns([*calls.values()], self.rounds, clock_of(self.tokens.device.type))
        return [dict(zip(calls, row, strict=True)) for row in rows]


@torch.no_grad()
def unlooped_part(model: LoopedTransformer, tokens: Tensor) -> Tensor:
    """Unlooped layers and head alone."""
    attend = CausalAttention.of(tokens)
    hidden = run_stages(
        model,
        model.embed(tokens, attend.positions),
        layer=lambda number, hidden: model.unlooped_layer(number, hidden, attend),
        group=lambda index, hidden: hidden,
    )
    return model.readout(hidden)


@torch.no_grad()
def thresholds(bench: Benchmark) -> list[tuple[str, float, float]]:
    """Criteria, the `SHARES` of their statistics over full loops, and thresholds that these are
    below.
    """
    trace = bench.model.trace(bench.tokens[:1], [bench.max_loops] * bench.num_groups, bench.noise)
    groups = [part.states for part in trace if part.stage is not None and part.stage.is_group]
    updates = [[x_new - x for x, x_new in pairwise(states)] for states in groups]
    statistic = {
        "step_norm": [vectors.norm(update) for group in updates for update in group],
        "acceleration": [
            vectors.acceleration(new, old) for group in updates for old, new in pairwise(group)
        ],
    }
    values = {
        name: torch.cat([part.flatten() for part in parts]) for name, parts in statistic.items()
    }
    return [
        (name, share, values[name].quantile(share).item()) for name in values for share in SHARES
    ]


def compare_with_evaluations(bench: Benchmark, label: str, name: str, threshold: float) -> None:
    criterion, full = make_criterion(name, threshold), make_criterion("fixed", bench.max_loops)
    evaluations = (
        bench.evaluate(criterion)[1].evaluations.double().mean((1, 2)).tolist()
    )  # per group
    calls = {
        "criterion": lambda: bench.evaluate(criterion),
        "full": lambda: bench.evaluate(full),
        "unlooped": lambda: unlooped_part(bench.model, bench.tokens),
    }
    number = bench.tokens.numel()
    state = torch.randn(number, bench.model.config.hidden_size, device=bench.tokens.device)
    cache = KVCache(bench.model.config, 1, state, *bench.tokens.shape)
    texts = TextKV(cache, bench.tokens, None, bench.tokens.shape[1])
    attend = texts.attend(0, torch.arange(number, device=state.device))
    for group in range(bench.num_groups):  # one loop step of all tokens
        calls[str(group)] = torch.no_grad()(
            partial(bench.model.recur, group, 0, state, state, attend)
        )

    def over_full(t: Times) -> float:
        return t["criterion"] / t["full"]

    def over_evaluations(t: Times) -> float:
        expected = t["unlooped"] + sum(
            count * t[str(group)] for group, count in enumerate(evaluations)
        )
        expected_full = t["unlooped"] + sum(
            bench.max_loops * t[str(group)] for group in range(bench.num_groups)
        )
        return over_full(t) / (expected / expected_full)

    rounds = bench.time(calls)
    counts = ", ".join(f"{count:.1f}" for count in evaluations)
    print(f"{counts} of {bench.max_loops} evaluations, threshold {threshold:.2g}")
    record(f"{label} against its evaluations", [over_evaluations(t) for t in rounds], aim="≤ 1.25")


def compare_kl(bench: Benchmark) -> None:
    kl, full = make_criterion("kl", NEVER), make_criterion("fixed", bench.max_loops)
    states = torch.randn(
        bench.tokens.numel(), bench.model.config.hidden_size, device=bench.tokens.device
    )
    calls = {"kl": lambda: bench.evaluate(kl), "loops": lambda: bench.evaluate(full)}
    rounds = bench.time(
        calls | {"readout": torch.no_grad()(lambda: bench.model.readout(states).softmax(-1))}
    )
    readouts = bench.num_groups * (bench.max_loops + 1)  # x^0 … x^K of every group
    times = [t["kl"] / (t["loops"] + readouts * t["readout"]) for t in rounds]
    record("`kl` against loops, head and softmax", times, aim="≤ 1.15")


def make_benchmark(arguments: argparse.Namespace) -> Benchmark:
    config = ModelConfig(
        num_layers=8,
        num_heads=arguments.num_heads,
        hidden_size=arguments.hidden_size,
        context_length=arguments.context_length,
        vocab_size=arguments.vocab_size,
    )
    generator, shape = (
        torch.Generator().manual_seed(0),
        (arguments.batch_size, config.context_length),
    )
    tokens = torch.randint(config.vocab_size, shape, generator=generator)
    noise = torch.randn(*shape, config.hidden_size, generator=generator)
    model, tokens, noise = (
        part.to(arguments.device) for part in (initialise(config, 0), tokens, noise)
    )
    return Benchmark(model, tokens, noise, arguments.max_loops, arguments.rounds)


def main() -> None:
    sizes = {
        "hidden_size": 256,
        "num_heads": 4,
        "context_length": 256,
        "batch_size": 8,
        "max_loops": 8,
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    smoke = {"hidden_size": 32, "context_length": 16, "batch_size": 2, "max_loops": 4, "rounds": 2}
    arguments = options(
        __doc__, smoke, **sizes, vocab_size=4096, rounds=5, threads=1, device=device
    )
    torch.set_num_threads(arguments.threads)
    bench = make_benchmark(arguments)
    for name, share, threshold in thresholds(bench):
        compare_with_evaluations(bench, f"`{name}`, {share:.0%} below τ,", name, threshold)
    compare_kl(bench)


if __name__ == "__main__":
    main()
