"""Loops of trained models by others, whose weights are on disk; docs/jacobians.md has the sources."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from tests.small import ROOT
from tests.studies.spectrum.jacobians.maps import Map

CLUES = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


def zoo_maps(folder: Path) -> Iterator[Map]:
    """The maps of those files that the folder has: a state after each of some numbers of loop steps.

    shortest_path.pt or shortest_path.safetensors with shortest_path.data, sudoku.pt, recur3.safetensors with
    recur3-input.safetensors, the tensors `embedded` (1, T, C) and `state_0` (1, T, C).
    """
    torch.backends.mha.set_fastpath_enabled(False)  # one fused operation, whose products could not be rounded
    found = {path.name: path for path in folder.iterdir()}
    solver = found.get("shortest_path.pt") or found.get("shortest_path.safetensors")
    if solver and "shortest_path.data" in found:
        yield from shortest_path(solver, found["shortest_path.data"])
    if "sudoku.pt" in found:
        yield from sudoku(found["sudoku.pt"])
    if {"recur3.safetensors", "recur3-input.safetensors"} <= found.keys():
        yield from recur3(found["recur3.safetensors"], found["recur3-input.safetensors"])


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


class Recur3(nn.Module):
    """A loop step of a language model: diagonal injection of the input, then two pre-norm layers; state (1, T, C)."""

    HEADS, ROTATED, BASE = 4, 16, 10_000.0

    def __init__(self, weights: dict[str, Tensor], embedded: Tensor) -> None:
        super().__init__()
        core = {name: value for name, value in weights.items() if name.startswith(("adapter.", "core_block."))}
        for name, value in {**core, "embedded": embedded}.items():
            self.register_buffer(name.replace(".", "_"), value)
        self.layers = len({name.split(".")[1] for name in core if name.startswith("core_block.")})

    def forward(self, x: Tensor) -> Tensor:
        step = F.softplus(self.adapter_dt_bias)
        x = x * (-step * self.adapter_A_log.exp()).exp() + step * (self.embedded @ self.adapter_B.T)
        for layer in range(self.layers):
            weights = {name: getattr(self, f"core_block_{layer}_{name}_weight") for name in self.NAMES}
            x = x + self._attention(_normed(x) * weights["norm_1"], weights)
            x = x + F.gelu(_normed(x) * weights["norm_2"] @ weights["mlp_fc"].T) @ weights["mlp_proj"].T
        return x

    NAMES = ("norm_1", "attn_c_q", "attn_c_k", "attn_c_v", "attn_c_proj", "norm_2", "mlp_fc", "mlp_proj")

    def _attention(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Causal, with q and k of unit root mean square and rotated: (1, T, C) -> (1, T, C)."""
        parts = (x @ weights[f"attn_c_{name}"].T for name in "qkv")
        q, k, v = (part.unflatten(-1, (self.HEADS, -1)).transpose(1, 2) for part in parts)  # (1, H, T, D)
        q, k = (self._rotated(_normed(part, 0.0)) for part in (q, k))
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~torch.ones_like(q @ k.mT).bool().tril(), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ weights["attn_c_proj"].T

    def _rotated(self, x: Tensor) -> Tensor:
        """Neighbouring channels of the first ROTATED turned by angles that grow with the position."""
        rates = self.BASE ** (-torch.arange(0, self.ROTATED, 2, dtype=x.dtype) / self.ROTATED)
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates  # (T, R / 2)
        even, odd, rest = x[..., 0 : self.ROTATED : 2], x[..., 1 : self.ROTATED : 2], x[..., self.ROTATED :]
        cosine, sine = angles.cos(), angles.sin()
        turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)
        return torch.cat([turned, rest], -1)


def _normed(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def recur3(weights: Path, inputs: Path) -> Iterator[Map]:
    """The core of the language model on a text."""
    given = {name: value.double() for name, value in load_file(inputs).items() if value.is_floating_point()}
    tensors = {name: value.double() for name, value in load_file(weights).items()}
    yield from _after("recur3", Recur3(tensors, given["embedded"]), given["state_0"], (3, 16))
