"""A looped decoder learns chains, where the loops that each answer needs are known: do exit
criteria find them?

    python docs/examples/chains.py results/chains

A document is a table and twelve queries, one token each. The token at position a of the table is
the node that follows node a; the token of a query is a node, and its target is the answer. Three
tasks:

- until: four chains of 1 to 6 steps, whose last node is followed by itself. The answer is the last
  node of the chain;
- count: a permutation. The answer to query number j is the node after 1 + j // 2 steps;
- permuted: until, with the answers of a document permuted among its queries, so that no loop helps.

The model is one looped layer of the project. With a loss on the answer alone, it does not learn two
steps. Here, loop k learns the node after k steps, first with one loop, and with one more each time
the last loop is right in 95 % of queries (`permuted` has no such part). Then all loops 1 … 16 learn
the answer, so that an unfinished loop knows how unsure it is. The tokens of the table, which
nothing predicts, have a tenth of the weight.

Printed is the share of right answers in held-out documents by the steps they need, and of some
criteria the mean evaluations by these steps. The arena (docs/arena.md) compares exits after at most
16 evaluations, of the answers and of all tokens. A run of all tasks takes about twenty minutes on
one core.
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from shortest_path import Point, chosen_exits, write_exits
from torch import Tensor

from twoscale.config import ModelConfig
from twoscale.model.transformer import LoopedTransformer, initialise

NODES, CHAINS, QUERIES, STEPS = 16, 4, 12, 6  # STEPS: the most that an answer needs
LENGTHS = torch.tensor(
    [
        steps
        for steps in itertools.product(range(1, STEPS + 1), repeat=CHAINS)
        if sum(steps) == NODES - CHAINS
    ]
)
TASKS = ("until", "count", "permuted")
BATCH, LEARNING_RATE, WARMUP, SOLVED, TABLE_WEIGHT = 64, 2e-3, 50, 0.95, 0.1
ITERATIONS, LAST_ITERATIONS = 2000, 600  # at most for each number of steps, and at the end
LOOPS, HELD_OUT = 16, 500
EVALUATIONS = 4  # mean at which the exits of SHOWN are printed
SHOWN = ("step_norm_relative", "kl", "acceleration_normalized", "confidence", "entropy")


@dataclass(frozen=True)
class Documents:
    """B documents of one task."""

    tokens: Tensor  # int64 (B, NODES + QUERIES); query tokens are NODES + node
    paths: (
        Tensor  # (STEPS + 1, B, QUERIES): the node after k steps, or the answer if it comes sooner
    )
    steps: Tensor  # (B, QUERIES): steps to the answer

    def targets(self, queries: Tensor) -> Tensor:
        """Next token of every token of the table, and targets (K, B, QUERIES) of queries -> (K, B,
        T).
        """
        following = self.tokens[:, 1 : NODES + 1].expand(len(queries), -1, -1)
        return torch.cat([following, queries], dim=-1)


def documents(task: str, count: int, generator: torch.Generator) -> Documents:
    order = torch.rand(count, NODES, generator=generator).argsort(1)
    if task == "count":
        following = order
        nodes = torch.randint(NODES, (count, QUERIES), generator=generator)
        steps = (1 + torch.arange(QUERIES) // 2).expand(count, -1)
    else:  # `order` is one chain after the other
        lengths = LENGTHS[torch.randint(len(LENGTHS), (count,), generator=generator)]
        ends = (lengths + 1).cumsum(1) - 1
        after = torch.arange(1, NODES + 1).expand(count, -1).scatter(1, ends, ends)
        following = torch.empty_like(order).scatter_(1, order, order.gather(1, after))
        is_end = following == torch.arange(NODES)
        nodes = (torch.rand(count, NODES, generator=generator) + is_end).argsort(1)[:, :QUERIES]
        steps = torch.full_like(nodes, STEPS)
    paths = [nodes]
    for k in range(STEPS):
        paths.append(torch.where(steps > k, following.gather(1, paths[-1]), paths[-1]))
    paths = torch.stack(paths)
    steps = steps if task == "count" else (paths != paths[-1]).sum(0)
    if task == "permuted":
        shuffled = torch.rand(count, QUERIES, generator=generator).argsort(1)
        paths = paths[-1].gather(1, shuffled).expand_as(paths)
    return Documents(torch.cat([following, NODES + nodes], dim=1), paths, steps)


# --- training -------------------------------------------------------------------------------------


def untrained(seed: int) -> LoopedTransformer:
    return initialise(
        ModelConfig(
            **{
                "num_layers": 1,
                "groups": [[1]],
                "num_heads": 4,
                "hidden_size": 64,
                "mean_loops": 6,
            },
            **{"context_length": NODES + QUERIES, "vocab_size": 2 * NODES, "tied_head": False},
            **{"state_init": "input", "adapter_init": "blend"},
        ),
        seed,
    )


def states_of(model: LoopedTransformer, tokens: Tensor, loops: int) -> Tensor:
    """x^1 … x^loops: (loops, B, T, C)."""
    return model.exit_states(tokens, loops, lambda group, k, like: torch.zeros_like(like))[0]


def train(task: str, seed: int) -> LoopedTransformer:
    model, generator = untrained(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0)
    first = 0
    for loops in range(1, STEPS + 1) if task != "permuted" else ():
        right = 0.0
        for iteration in range(first, first + ITERATIONS):
            # tables of permutations alone do not teach the first step: each answer is as frequent
            # as any other
            batch = documents("until" if loops == 1 else task, BATCH, generator)
            rate = LEARNING_RATE * min(1, (iteration + 1) / WARMUP)
            right += 0.1 * (step(model, optimizer, rate, batch, batch.paths[1 : loops + 1]) - right)
            if right > SOLVED:
                break
        first = iteration + 1
        print(f"{task}: {loops} steps, {right:.2f} right after {first} iterations", flush=True)
    for iteration in range(LAST_ITERATIONS):
        rate = LEARNING_RATE / 2 * (1 - iteration / LAST_ITERATIONS)
        batch = documents(task, BATCH, generator)
        step(model, optimizer, rate, batch, batch.paths[-1].expand(LOOPS, -1, -1))
    return model


def step(
    model: LoopedTransformer,
    optimizer: torch.optim.Optimizer,
    rate: float,
    batch: Documents,
    queries: Tensor,
) -> float:
    """One iteration with targets (K, B, QUERIES) of loops 1 … K; the share that the last loop has
    right before it.
    """
    logits = model.readout(states_of(model, batch.tokens, len(queries)))
    losses = F.cross_entropy(logits.movedim(-1, 1), batch.targets(queries), reduction="none")
    (losses[..., NODES:].mean() + TABLE_WEIGHT * losses[..., :NODES].mean()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    return (logits[-1, :, NODES:].argmax(-1) == queries[-1]).double().mean().item()


# --- exits ----------------------------------------------------------------------------------------


def shown_exits(exits: Mapping[Point, Tensor], steps: Tensor) -> Iterator[pd.Series]:
    """Mean evaluations of the answers by steps (B, QUERIES), and rank correlation with them, for
    SHOWN.
    """
    for name in SHOWN:
        points = {
            point: depths[:, NODES:].double() for point, depths in exits.items() if point[0] == name
        }
        if points:
            threshold = min(
                points, key=lambda point: abs(points[point].mean().item() - EVALUATIONS)
            )
            rows = pd.DataFrame({"steps": steps.flatten(), "exit": points[threshold].flatten()})
            means = rows.groupby("steps")["exit"].mean()
            means["mean"], means["rank correlation"] = (
                rows["exit"].mean(),
                rows.rank().corr().iloc[0, 1],
            )
            yield means.rename(f"{name} {threshold[1]:.3g}")


@torch.no_grad()
def compare_exits(task: str, model: LoopedTransformer, seed: int, folder: Path) -> None:
    held_out = documents(task, HELD_OUT, torch.Generator().manual_seed(2**32 + seed))
    entered = model.embed(held_out.tokens, torch.arange(NODES + QUERIES))[None]  # x^0
    states = torch.cat([entered, states_of(model, held_out.tokens, LOOPS)])  # (K + 1, B, T, C)
    logits, answers = model.readout(states), held_out.paths[-1]
    is_right = (logits[1:, :, NODES:].argmax(-1) == answers).double()
    right = {d: is_right[:, held_out.steps == d].mean(1).numpy() for d in range(1, STEPS + 1)}
    print(pd.DataFrame(right, range(1, LOOPS + 1)).round(3).rename_axis("loops").to_string())
    targets = held_out.targets(answers.expand(len(states), -1, -1))
    losses = F.cross_entropy(logits.movedim(-1, 1), targets, reduction="none").double()
    exits = chosen_exits(model, states)
    print(pd.DataFrame(shown_exits(exits, held_out.steps)).round(2).to_string())
    of_answers = {point: depths[:, NODES:] for point, depths in exits.items()}
    of_answers = {
        point: depths for point, depths in of_answers.items() if depths.min() < depths.max()
    }
    for name, nats, chosen in (
        ("answers", losses[..., NODES:], of_answers),
        ("all", losses, exits),
    ):
        print(f"\n{task}, {name}:")
        write_exits(nats, chosen, f"chains_{task}", folder / task / name)


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path, help="folder of the results")
    options.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    for task in arguments.tasks:
        compare_exits(task, train(task, arguments.seed), arguments.seed, arguments.folder)
