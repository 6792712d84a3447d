"""The loss of a published model on sequences at even distances over a file of token ids.

    python docs/zoo/losses.py MODEL_FOLDER fineweb_val_000003.bin LOOPS CONTEXT 200000

The file has 1024 bytes of header, then ids of 16 bits, as those of modded-nanogpt and
parameter-golf.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from twoscale.model.loss import cross_entropies
from twoscale.model.noise import EvaluationNoise
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.published.weights import open_published

BATCH, SEED, HEADER = 8, 1, 1024


@torch.inference_mode()
def main(folder: str, file: str, loops: str, context: str, tokens: str) -> None:
    source, length = PublishedFolder(Path(folder)), int(context)
    config = source.model_config()
    model = open_published(source.path, config, torch.float32, "cpu")
    ids = torch.from_numpy(np.fromfile(file, dtype="<u2", offset=HEADER).astype(np.int64))
    number, found = int(tokens) // length, []
    starts = [i * (len(ids) // number) for i in range(number)]
    for first in range(0, number, BATCH):
        rows = torch.stack(
            [ids[start : start + length + 1] for start in starts[first : first + BATCH]]
        )
        noise = EvaluationNoise.of(config, SEED, range(first, first + len(rows)))
        found.append(cross_entropies(model(rows[:, :-1], [int(loops)], noise), rows[:, 1:]).mean(1))
    losses = torch.cat(found)
    print(
        f"{losses.mean():.4f} ± {losses.std() / number**0.5:.4f} nats per token on"
        f" {number * length} tokens"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
