"""Exit criteria on a published model, over the first tokens of many documents; the arena compares
them.

    python docs/examples/published_exits.py MODEL_FOLDER fineweb_val_000003.bin results/recur3 --loops 12

MODEL_FOLDER is one of docs/models.md with one looped group; the file has 1024 bytes of header, then
ids of 16 bits, as those of modded-nanogpt and parameter-golf. Each token leaves alone, on frozen
trajectories: all other tokens run all loops. So one pass over the text serves all criteria and
thresholds, and random exits and fixed loops are exact. Criteria on predictions see those of the
layers after the loop.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from shortest_path import Point, write_exits
from torch import Tensor

from twoscale.config.criteria import FACTS
from twoscale.exits.contract import frozen_exits
from twoscale.exits.criteria import CRITERIA, ExitCriterion
from twoscale.exits.passes import Pass
from twoscale.model.interface import CausalAttention, LoopedModel
from twoscale.model.loss import cross_entropies
from twoscale.model.noise import EvaluationNoise
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.published.weights import open_published
from twoscale.replay.gains import PRIMARY
from twoscale.studies.arena.measure import STREAMS, frozen_groups

BATCH, SEED, HEADER = 8, 1, 1024
HALF_DECADES = [10 ** (exponent / 2) for exponent in range(-6, 5)]  # for states of any size
GRIDS = {name: FACTS[name].grid for name in sorted({*PRIMARY, "entropy"})}
GRIDS |= dict.fromkeys(("step_norm", "acceleration"), HALF_DECADES)
GRIDS = {name: grid[::2] for name, grid in GRIDS.items()}


def documents(ids: Tensor, start: int, tokens: int) -> Tensor:
    """The first tokens + 1 ids of each document that has as many; documents begin with the id
    `start`.
    """
    first = (ids == start).nonzero().flatten()
    length = torch.diff(first, append=torch.tensor([len(ids)]))
    return torch.stack(
        [ids[begin : begin + tokens + 1] for begin in first[length > tokens].tolist()]
    )


def decided(criterion: ExitCriterion, states: Tensor, logits: dict[int, Tensor]) -> Tensor:
    """Evaluations of each token, (N,), for states (K + 1, N, C) and the logits of each by its
    address.
    """
    return frozen_exits(states, criterion, lambda x: logits[x.data_ptr()]).evaluations


@torch.inference_mode()
def losses_and_exits(
    model: LoopedModel, rows: Tensor, loops: int
) -> tuple[Tensor, dict[Point, Tensor]]:
    """Losses (K + 1, N, T) of documents (N, T + 1), and the evaluations (N, T) that each criterion
    and threshold gives.

    Thresholds at which all tokens leave after the same evaluations are left out.
    """
    losses, exits = [], {(name, tau): [] for name, grid in GRIDS.items() for tau in grid}
    for number, batch in enumerate(rows.split(BATCH)):
        first, tokens = number * BATCH, batch[:, :-1]
        noise = EvaluationNoise.of(model.config, SEED, range(first, first + len(batch)))
        (frozen,) = frozen_groups(Pass(model, loops, noise, CausalAttention.of(tokens)), tokens)
        readouts = torch.cat(
            [model.readout(frozen.behind(part)) for part in frozen.states.split(STREAMS)]
        )
        losses.append(torch.stack([cross_entropies(logits, batch[:, 1:]) for logits in readouts]))
        states = frozen.states.flatten(1, 2)
        logits = {
            x.data_ptr(): of_tokens
            for x, of_tokens in zip(states, readouts.flatten(1, 2), strict=True)
        }
        for (name, tau), found in exits.items():
            found.append(decided(CRITERIA[name](tau), states, logits).view(tokens.shape))
    chosen = {point: torch.cat(found) for point, found in exits.items()}
    differ = {point: depths for point, depths in chosen.items() if depths.min() < depths.max()}
    return torch.cat(losses, dim=1).double(), differ


def main(arguments: argparse.Namespace) -> None:
    source = PublishedFolder(arguments.model)
    model = open_published(source.path, source.model_config(), torch.float32, "cpu")
    ids = torch.from_numpy(
        np.fromfile(arguments.tokens, dtype="<u2", offset=HEADER).astype(np.int64)
    )
    rows = documents(ids, arguments.start, arguments.length)[: arguments.documents]
    losses, exits = losses_and_exits(model, rows, arguments.loops)
    print("nats after 1, 2, … evaluations:", *(f"{nats:.4f}" for nats in losses[1:].mean((1, 2))))
    write_exits(losses, exits, arguments.folder.name, arguments.folder)


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("model", type=Path, help="folder of the published model")
    options.add_argument("tokens", type=Path, help="file of token ids")
    options.add_argument("folder", type=Path, help="folder of the results")
    options.add_argument("--loops", type=int, required=True, help="evaluations at most")
    options.add_argument("--documents", type=int, help="at most so many")
    options.add_argument("--length", type=int, default=128, help="tokens of each document")
    options.add_argument("--start", type=int, default=1, help="id that begins a document")
    main(options.parse_args())
