"""Write docs/loops/solver.html: the loops of the solver of shortest paths on one problem.

    python docs/loops/solver.py "solver/shortest_path/shortest_path_[n=4][1610]ste.pt" \\
        solver/shortest_path/data/4x4_1610.data

The weights and the problems are those of docs/examples/shortest_path.py. The page has the grid of a
test problem in place of a text: of those with one shortest path that the solver finds, the problem
on which it changes its mind latest.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from twoscale.dynamics.state_paths import read_states, state_paths
from twoscale.recorder.recorder import Recorder
from twoscale.recorder.run import read_loop_tables
from twoscale.report.loops import loops_page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

from shortest_path import EDGES, NODES, PRESENT, Solver, load, read_problems  # noqa: E402

LOOPS, SIDE = 32, 4
# the ends of each edge: those along a row, row by row, then those along a column, column by column
PAIRS = [(SIDE * row + column, SIDE * row + column + 1) for row in range(4) for column in range(3)]
PAIRS += [
    (SIDE * row + column, SIDE * row + column + SIDE) for column in range(4) for row in range(3)
]
EXITS = {"step_norm": (2, 4, 8, 16), "cosine": (1e-4, 1e-3, 1e-2), "kl": (1e-6, 1e-4, 1e-2)}
TAKEN = ("off", "path")  # what an edge may be predicted to be


def choose(model: Solver, problems: Tensor, solutions: list[set[tuple[int, ...]]]) -> int:
    """The number of the problem, among those with one path that is found after all loops."""
    marked = torch.stack(
        [model.readout(state).argmax(-1) for state in model.states(problems, LOOPS)]
    )
    marked = marked[:, :, NODES:]  # (K + 1, N, E)
    latest = (marked != marked[-1]).any(-1).sum(0)  # loop steps (N,) with another answer
    for number, paths in enumerate(solutions):
        found = tuple(marked[-1, number].nonzero().flatten().tolist())
        if paths != {found}:
            latest[number] = 0
    return int(latest.argmax())


def words(problem: Tensor) -> list[str]:
    """Names of the tokens (40,): nodes, of which the ends are A and B, and edges."""
    ends = iter("AB")
    nodes = [next(ends) if is_end else "•" for is_end in problem[:NODES].tolist()]
    edges = [
        f"{first + 1}–{second + 1}" if state == PRESENT else "✕"
        for (first, second), state in zip(PAIRS, problem[NODES:].tolist(), strict=True)
    ]
    return nodes + edges


def places() -> list[tuple[int, int]]:
    """Row and column of the tokens: nodes at the odd ones, edges between them."""
    nodes = [(2 * (node // SIDE) + 1, 2 * (node % SIDE) + 1) for node in range(NODES)]
    edges = [np.add(nodes[first], nodes[second]) // 2 for first, second in PAIRS]
    return nodes + [(int(row), int(column)) for row, column in edges]


@torch.no_grad()
def main(weights: Path, data: Path) -> None:
    model, (problems, solutions) = load(weights), read_problems(data)
    number = choose(model, problems, solutions)
    problem, (solution,) = problems[number], solutions[number]
    targets = torch.full_like(problem, -1)
    targets[NODES:] = 0
    targets[[NODES + edge for edge in solution]] = 1
    with tempfile.TemporaryDirectory() as folder:
        options = {"decode": model.readout, "targets": lambda *_: targets[None], "exits": EXITS}
        with Recorder(model.double(), {"layer": "blocks"}, folder, iteration=0, **options):
            model(problem[None], LOOPS)
        paths = state_paths(read_states(Path(folder, "states.safetensors")), "solver")
        found = read_loop_tables(Path(folder), paths, 0)
    named = dict(enumerate(words(problem)))
    paths["token"] = paths["position"].map(named)
    for column in ("predicted", "target"):
        found.loop_tokens[column] = (
            found.loop_tokens[column].astype(int).map(dict(enumerate(TAKEN)))
        )
    page = loops_page(
        found,
        "a solver of shortest paths",
        "a 4 × 4 grid, from A to B",
        NODES + EDGES,
        places=places(),
        unit="edge",
        what="whether the solver would put it on the shortest path if the loop ended here",
        mark="path",
    )
    (HERE / "solver.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("weights", type=Path, help="weights of the solver, .pt or .safetensors")
    options.add_argument("data", type=Path, help="problems, 4x4_1610.data")
    arguments = options.parse_args()
    main(arguments.weights, arguments.data)
