"""Held-out sequences that are not consecutive, and a model: tables name the sequences by their
numbers.
"""

import numpy as np
import pandas as pd
import torch

from tests import small
from twoscale.config import ExitsConfig, TrajectoriesConfig
from twoscale.data.batches import held_out_sequences
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise

SEED, LOOPS, T = 3, 4, 8
END = 0
SHARD = np.random.default_rng(0).integers(0, 11, size=20 * T + 1).astype("<u2")
CHOSEN = held_out_sequences(SHARD, END, T, 3)
MODEL = (
    initialise(small.model_config(context_length=T, vocab_size=11), SEED)
    .double()
    .requires_grad_(False)
)
CHECKPOINT = small.checkpoint(MODEL, SEED)
TRAJECTORIES = TrajectoriesConfig(
    loops=LOOPS, tokens=3 * T, batch_size=2, dtype="float64", states_sequence=0
)
EXITS = {"max_loops": LOOPS, "dtype": "float64", "quality_batch_size": 2}


def exits(**changes):
    return ExitsConfig(**EXITS | {"criteria": {"fixed": {"thresholds": [LOOPS]}}} | changes)


def loss_under_own_noise(row):
    """Cross-entropy of one of the sequences, from the plain forward pass."""
    noise = EvaluationNoise(SEED, [CHOSEN.sequences[row]], T)
    logits = MODEL(CHOSEN.inputs[row : row + 1], [LOOPS, LOOPS], noise)[0]
    return torch.nn.functional.cross_entropy(logits, CHOSEN.targets[row]).item()


def assert_numbered(rows):
    """The rows of a table have the numbers of the sequences CHOSEN and of their documents."""
    numbers = (
        pd.DataFrame(rows)[["sequence", "document"]]
        .drop_duplicates()
        .itertuples(index=False, name=None)
    )
    assert sorted(numbers) == list(zip(CHOSEN.sequences, CHOSEN.documents, strict=True))
