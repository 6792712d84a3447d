"""Loops of trained models by others, whose weights are on disk; docs/jacobians.md has the sources."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.small import ROOT, checkpoint
from tests.studies.spectrum.jacobians.maps import Map
from twoscale.model.interface import CausalAttention
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.published.weights import open_published

TOKENS = 64  # of a published language model
CLUES = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


def zoo_maps(folder: Path) -> Iterator[Map]:
    """The maps of those files that the folder has: a state after each of some numbers of loop steps.

    shortest_path.pt or shortest_path.safetensors with shortest_path.data, sudoku.pt, and folders of published models
    that the workflow imports (docs/models.md), which give their names to the maps.
    """
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operation, whose products could not be rounded
    found = {path.name: path for path in folder.iterdir()}
    solver = found.get("shortest_path.pt") or found.get("shortest_path.safetensors")
    if solver and "shortest_path.data" in found:
        yield from shortest_path(solver, found["shortest_path.data"])
    if "sudoku.pt" in found:
        yield from sudoku(found["sudoku.pt"])
    for path in sorted(folder.glob("*/config.json")):
        yield from published(path.parent)


def _after(name: str, step: nn.Module, state: Tensor, loops: tuple[int, ...]) -> Iterator[Map]:
    """The map at its states after some numbers of loop steps, in increasing order."""
    with torch.no_grad():
        for k in range(1, loops[-1] + 1):
            state = step(state)
            if k in loops:
                yield Map(name, step, state, loops=k)


def shortest_path(weights: Path, data: Path) -> Iterator[Map]:
    """The solver of docs/examples/shortest_path.py on the first problem of its test split."""
    spec = importlib.util.spec_from_file_location("shortest_path", ROOT / "docs" / "examples" / "shortest_path.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, (problems, _) = example.load(weights).double(), example.read_problems(data)
    start = (model.tok_emb(problems[:1]) + model.pos_emb).detach()
    yield from _after("shortest_path", model.blocks, start, (16, 64))


class Sudoku(nn.Module):
    """A loop step of a solver of sudokus: four layers on the state, the clues and the digits that the state predicts.

    The state is (1, 81, 128).
    """

    def __init__(self) -> None:
        super().__init__()
        self.input_proj, self.output_head = nn.Linear(19, 128), nn.Linear(128, 9)
        self.row_embed, self.col_embed, self.box_embed = (nn.Embedding(9, 128) for _ in range(3))
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        clues = [0 if clue == "." else int(clue) for clue in CLUES]
        self.register_buffer("clues", F.one_hot(torch.tensor([clues]), 10).float(), persistent=False)

    def forward(self, state: Tensor) -> Tensor:
        return self.next(state, self.output_head(state).softmax(-1))

    def next(self, state: Tensor, digits: Tensor) -> Tensor:
        """The next state, from probabilities of digits (1, 81, 9)."""
        cell = torch.arange(81)
        row, column = cell // 9, cell % 9
        place = self.row_embed(row) + self.col_embed(column) + self.box_embed(row // 3 * 3 + column // 3)
        return self.transformer(self.input_proj(torch.cat([self.clues, digits], -1)) + place + state)


def sudoku(weights: Path) -> Iterator[Map]:
    """The solver on one sudoku of 30 clues."""
    step = Sudoku()
    step.load_state_dict(torch.load(weights, "cpu", weights_only=True))
    step = step.double().eval()
    with torch.no_grad():
        zeros = torch.zeros(1, 81, 128, dtype=torch.float64)
        first = step.next(zeros, zeros[..., :9])
    yield from (
        Map(m.name, m.step, m.state, loops=m.loops + 1) for m in _after("sudoku", step, first, (15, 31, 63, 127))
    )


class PublishedLoop(nn.Module):
    """A loop step of the first looped group of a published model with a given input; state (1, T, C)."""

    def __init__(self, model: nn.Module, injected: Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("injected", injected)

    def forward(self, state: Tensor) -> Tensor:
        attend = CausalAttention(torch.arange(state.shape[1]))
        return self.model.recur(0, 0, state, self.injected, attend)


@torch.no_grad()
def published(folder: Path) -> Iterator[Map]:
    """A published model on random token ids, after the loops that it was published with and after 16."""
    source = PublishedFolder(folder)
    config = source.model_config(context_length=min(TOKENS, source.defaults.max_context_length))
    model = open_published(folder, config, torch.float64, "cpu")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (1, config.context_length), generator=generator)
    trace = model.trace(tokens, [1] * len(config.groups), checkpoint(model).noise([0]))
    entered, start = next((stage.entered, stage.states[0]) for stage in trace if stage.stage and stage.stage.is_group)
    step = PublishedLoop(model, model.project_input(0, entered))
    yield from _after(folder.name, step, start, tuple(sorted({config.mean_loops, 16})))
