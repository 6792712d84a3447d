"""A trained looped solver of shortest paths by others: its loops recorded, and exit criteria
compared on it.

    git clone https://github.com/azreasoners/recurrent_transformer solver
    python docs/examples/shortest_path.py "solver/shortest_path/shortest_path_[n=4][1610]ste.pt" \\
        solver/shortest_path/data/4x4_1610.data results/shortest_path
    twoscale draw results/shortest_path

The model (Yang et al., "Learning to Solve Constraint Satisfaction Problems with Recurrent
Transformer", ICLR 2023, MIT licence) is one bidirectional layer that is trained with 32 loops. It
marks the edges of a shortest path between two nodes of a 4 × 4 grid from which edges were removed.
Printed is the share of the 322 test problems whose whole path is right, by loops.

Unlike in text, tokens of this task need different numbers of loops, so exit criteria can gain
(docs/arena.md). The arena compares those of the project on 24 loops, in three folders:

- edges: each edge leaves alone; its loss is that of the shortest path that the last loop finds
  likeliest;
- one_path: the same for the problems with a single shortest path, where the loss does not depend on
  the last loop;
- problems: the edges of a problem leave together, when the last of them would; the loss is that of
  any shortest path.

Criteria named direction_… see the state divided by its norm, as the head does; its norm grows with
every loop.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from twoscale.exits.contract import frozen_exits
from twoscale.exits.criteria import CRITERIA, Acceleration, ExitCriterion
from twoscale.recorder.recorder import Recorder
from twoscale.replay.arena import write_arena
from twoscale.replay.check import check
from twoscale.replay.page import text
from twoscale.replay.page import write as write_check
from twoscale.replay.recording import FEWEST_DOCUMENTS, Exits, Recording
from twoscale.replay.rules import options_of_exits

Point = tuple[str, float]  # a criterion and its threshold
TOLERANCE = 0.01  # nats above full depth, of what to exit by
NODES, EDGES = 16, 24
ABSENT, PRESENT = 2, 3  # tokens of edges; those of nodes are 1 for the two ends, else 0
LOOPS = (8, 12, 16, 20, 24, 32, 48, 64)
ARENA_LOOPS = 24
QUARTER_DECADES = tuple(10 ** (exponent / 4) for exponent in range(-32, 9))
PROBABILITIES = (0.6, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999)
THRESHOLDS = {
    "argmax_stability": (1, 2, 3, 5, 8),
    "confidence": PROBABILITIES,
    "margin": PROBABILITIES,
}
# of the training, not published; above 0, so that the weights count as trained
TRAINED_ITERATIONS = 1


class Attention(nn.Module):
    """Attention of every token to all tokens."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.key, self.query, self.value, self.proj = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)  # (B, H, T, T)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """The looped layer."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attn = (
            nn.LayerNorm(size),
            nn.LayerNorm(size),
            Attention(size, heads),
        )
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Solver(nn.Module):
    """Problems (B, 40) -> logits (B, 40, 2): whether each edge, at 16 … 39, is on the path."""

    def __init__(self, size: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.tok_emb, self.pos_emb = (
            nn.Embedding(4, size),
            nn.Parameter(torch.zeros(1, NODES + EDGES, size)),
        )
        self.blocks = nn.Sequential(Block(size, heads))
        self.ln_f, self.head = nn.LayerNorm(size), nn.Linear(size, 2, bias=False)

    def forward(self, problems: Tensor, loops: int = 32) -> Tensor:
        return self.readout(self.states(problems, loops)[-1])

    def states(self, problems: Tensor, loops: int) -> list[Tensor]:
        """x^0 … x^loops (B, 40, C)."""
        states = [self.tok_emb(problems) + self.pos_emb]
        for _ in range(loops):
            states.append(self.blocks(states[-1]))
        return states

    def readout(self, x: Tensor) -> Tensor:
        return self.head(self.ln_f(x))


def load(weights: Path) -> Solver:
    """The trained solver from a .safetensors file or the published .pt file."""
    state = (
        load_file(weights)
        if weights.suffix == ".safetensors"
        else torch.load(weights, "cpu", weights_only=True)
    )
    model = Solver()
    # all ones: no token is masked
    model.load_state_dict(
        {name: value for name, value in state.items() if not name.endswith("attn.mask")}
    )
    return model.eval()


def read_problems(path: Path) -> tuple[Tensor, list[set[tuple[int, ...]]]]:
    """The test split: problems int64 (N, 40), and the edges of all shortest paths of each, in
    increasing order.

    A line has the removed edges, both ends and one or more paths, with commas between them:
    21-12,13-3,9-2,16-15-1.
    """
    lines = [
        [
            tuple(int(number) for number in field.split("-") if number)
            for field in line.strip().split(",")
        ]
        for line in path.read_text().splitlines()
    ]
    order = np.random.RandomState(0).permutation(len(lines))
    test = [lines[i] for i in order[-(len(lines) // 5) :]]
    problems = torch.zeros(len(test), NODES + EDGES, dtype=torch.int64)
    problems[:, NODES:] = PRESENT
    for row, (removed, ends, *_) in zip(problems, test, strict=True):
        row[list(ends)] = 1
        row[[NODES + edge for edge in removed]] = ABSENT
    return problems, [{tuple(sorted(solution)) for solution in paths} for _, _, *paths in test]


def accuracy(logits: Tensor, solutions: list[set[tuple[int, ...]]]) -> float:
    """Share of problems whose marked edges are one of the shortest paths; logits (N, 40, 2)."""
    marked = logits[:, NODES:].argmax(-1)  # (N, 24)
    right = [
        tuple(row.nonzero().flatten().tolist()) in paths
        for row, paths in zip(marked, solutions, strict=True)
    ]
    return sum(right) / len(right)


# --- the arena ------------------------------------------------------------------------------------


def path_losses(logits: Tensor, solutions: list[set[tuple[int, ...]]]) -> list[Tensor]:
    """Nats of each edge under each shortest path of each problem: logits (L, N, 24, 2) -> N times
    (paths, L, 24).
    """
    log_p, found = logits.log_softmax(-1), []
    for number, paths in enumerate(solutions):
        is_on = torch.zeros(len(paths), EDGES, dtype=torch.int64)
        for row, path in zip(is_on, sorted(paths), strict=True):
            row[list(path)] = 1
        chosen = (
            log_p[None, :, number]
            .expand(len(paths), -1, -1, -1)
            .gather(-1, is_on[:, None, :, None].expand(-1, len(log_p), -1, 1))
        )
        found.append(-chosen[..., 0])
    return found


def criteria() -> dict[tuple[str, float], tuple[ExitCriterion, bool]]:
    """(name, threshold) -> criterion, and whether it sees directions."""
    kinds = {
        name: kind for name, kind in CRITERIA.items() if name != "fixed" and not kind.needs_gate
    }
    kinds["acceleration_one_hit"] = type("OneHit", (Acceleration,), {"patience": 1})
    found = {}
    for name, kind in kinds.items():
        for threshold in THRESHOLDS.get(name, QUARTER_DECADES):
            found[name, threshold] = kind(threshold), False
            if not kind.needs_readout and name != "cosine" and "relative" not in name:
                found[f"direction_{name}", threshold] = kind(threshold), True
    return found


def chosen_exits(model: Solver, states: Tensor) -> dict[Point, Tensor]:
    """The evaluations after which each edge leaves, int64 (N, 24), for states (L, N, 24, C).

    A criterion that discards its last evaluation keeps it here, as the cost-matched exits do.
    Thresholds at which all edges leave after the same evaluations are left out.
    """
    raw = states.flatten(1, 2)
    exits = {}
    for point, (criterion, sees_directions) in criteria().items():
        rows = raw / raw.norm(dim=-1, keepdim=True) if sees_directions else raw
        found = frozen_exits(rows, criterion, model.readout)
        evaluations = found.evaluations.view(states.shape[1:3])
        if evaluations.min() < evaluations.max():
            exits[point] = evaluations
    return exits


def compare_exits(
    model: Solver, problems: Tensor, solutions: list[set[tuple[int, ...]]], folder: Path
) -> None:
    states = torch.stack(model.states(problems, ARENA_LOOPS))[:, :, NODES:]  # (K + 1, N, 24, C)
    exits = chosen_exits(model, states)
    by_path = path_losses(model.readout(states), solutions)
    nearest = torch.stack(
        [losses[losses[:, -1].sum(-1).argmin()] for losses in by_path], dim=1
    )  # (K + 1, N, 24)
    whole = torch.stack([-(-losses.sum(-1)).logsumexp(0) for losses in by_path], dim=1)[
        ..., None
    ]  # (K + 1, N, 1)
    is_single = torch.tensor([len(paths) == 1 for paths in solutions])
    together = {point: evaluations.amax(1, keepdim=True) for point, evaluations in exits.items()}
    for name, losses, chosen in (
        ("edges", nearest, exits),
        (
            "one_path",
            nearest[:, is_single],
            {point: evaluations[is_single] for point, evaluations in exits.items()},
        ),
        ("problems", whole, together),
    ):
        if losses.numel():  # else no problem has a single path
            print(f"\n{name}:")
            write_exits(losses, chosen, "shortest_path", folder / name)


def write_exits(losses: Tensor, exits: Mapping[Point, Tensor], run: str, folder: Path) -> None:
    """The arena, and what to exit by: losses (K + 1, N, E) of E tokens in each of N documents.

    `exits` (N, E) are evaluations, K at most. Losses and exits are also written as files that
    `twoscale exits check` reads.
    """
    document, position = np.indices(losses.shape[1:]).reshape(2, -1)
    cost = losses[1:].flatten(1).numpy()  # no token leaves before the first evaluation
    recording = Recording(folder, document, document, position, cost)
    depths = {point: of_tokens.flatten().numpy() for point, of_tokens in exits.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_recording(recording, depths, folder)
    print(write_arena(recording, depths, run, folder))
    if len(recording.tokens) < FEWEST_DOCUMENTS:
        return
    result = check(recording, lambda first: options_of_exits(depths), TOLERANCE)
    write_check(result, folder)
    print(text(result))


def write_recording(recording: Recording, exits: Exits, folder: Path) -> None:
    """Write losses.parquet and depths.parquet, a row per token and loop step or threshold."""
    keys = {"sequence": recording.sequences, "position": recording.positions}

    def repeated(times: int) -> dict[str, np.ndarray]:
        return {name: np.tile(of_tokens, times) for name, of_tokens in keys.items()}

    loops, count = recording.cost.shape
    losses = pa.table(
        {
            **repeated(loops),
            "depth": np.repeat(np.arange(1, loops + 1), count),
            "loss": recording.cost.reshape(-1),
        }
    )
    names, thresholds = zip(*exits, strict=True)
    depths = pa.table(
        {
            "criterion": np.repeat(names, count),
            "threshold": np.repeat(np.array(thresholds, dtype=np.float64), count),
            **repeated(len(exits)),
            "depth": np.concatenate(list(exits.values())),
        }
    )
    pq.write_table(losses, folder / "losses.parquet")
    pq.write_table(depths, folder / "depths.parquet")


@torch.no_grad()
def main(arguments: argparse.Namespace) -> None:
    model, (problems, solutions) = load(arguments.weights), read_problems(arguments.data)
    for loops in LOOPS:
        print(f"{loops:3d} loops: {accuracy(model(problems, loops), solutions):.3f}")
    with Recorder(
        model.double(), {"layer": "blocks"}, arguments.folder, iteration=TRAINED_ITERATIONS
    ):
        for batch in problems[: arguments.sequences].split(16):
            model(batch, max(LOOPS))
    compare_exits(model, problems, solutions, arguments.folder / "arena")


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("weights", type=Path, help="weights of the solver, .pt or .safetensors")
    options.add_argument("data", type=Path, help="problems, 4x4_1610.data")
    options.add_argument("folder", type=Path, help="folder of the recorded run")
    options.add_argument("--sequences", type=int, default=64, help="test problems to record")
    main(options.parse_args())
