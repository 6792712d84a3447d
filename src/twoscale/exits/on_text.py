"""Exits of a text: how many loop steps each token takes under a criterion, and what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.config.thresholds import check_threshold
from twoscale.exits import criteria, parallel
from twoscale.exits.criteria import ExitCriterion, Fixed
from twoscale.model.loss import cross_entropies

if TYPE_CHECKING:
    import pandas as pd

    from twoscale.model.trained_run import TrainedRun


def make_criterion(name: str, threshold: float) -> ExitCriterion:
    """A built-in exit criterion at a threshold.

    Args:
        name: Name of the criterion, such as "acceleration" (Algorithm 1), "step_norm", "kl", or "fixed" (the
            same number of loop steps for all tokens). The error for an unknown name lists all names.
        threshold: τ, in the unit of the criterion's statistic: that of the states for norms, nats for "kl", and a
            whole number of loop steps for "fixed".

    Raises:
        InputError: for an unknown name, or a threshold that is not a number above 0.

    Example:
        >>> criterion = twoscale.make_criterion("acceleration", threshold=0.01)

    `evaluate` also takes an instance of your subclass of `twoscale.exits.criteria.ExitCriterion`.
    """
    criterion = criteria.make_criterion(name, threshold)
    check_threshold(name, threshold, None, f"threshold of {name}", "max_loops")
    return criterion


def evaluate(
    run: TrainedRun, text: str | Sequence[int] | Tensor, criterion: ExitCriterion, max_loops: int = 30
) -> pd.DataFrame:
    """Exits and quality of each token of a text, when each token loops until the criterion fires.

    All tokens are computed in parallel; the result is the same as when they are decoded one by one.

    Args:
        run: What `open_run` returned.
        text: A text, or token ids (T,) or (B, T).
        criterion: What `make_criterion` returned, or an instance of your class.
        max_loops: Maximum number of loop steps of a token in a group.

    Returns:
        One row for each token and looped group, with the columns

            - sequence, position: 0 … B - 1 and 0 … T - 1
            - token: text of the token
            - group: label of the looped group, such as "5-6"
            - loop_steps: loop steps of the state with which the token leaves the group
            - evaluations: loop steps that were computed (the cost), one more if the criterion discards the last one
            - ce: cross-entropy of the next token in nats, equal for all groups; NaN at the end of a sequence

    Raises:
        InputError: for a text that is longer than the context, wrong token ids, a model without looped groups, and a
            criterion that breaks its contract.

    Example:
        >>> exits = twoscale.evaluate(run, "Return the value", twoscale.make_criterion("acceleration", 0.01))
        >>> exits.groupby("group")[["evaluations", "ce"]].mean()
    """
    tokens, labels = run.context(text), run.model.config.group_labels
    _check(criterion, max_loops, labels)
    logits, counts = parallel.evaluate(run.model, tokens, criterion, max_loops, run.noise(range(len(tokens))))
    losses = torch.full(tokens.shape, torch.nan, dtype=torch.float64)  # (B, T)
    losses[:, :-1] = cross_entropies(logits[:, :-1], tokens[:, 1:]).cpu()
    return _frame(run, tokens, labels, counts, losses)


def _check(criterion: ExitCriterion, max_loops: int, labels: Sequence[str]) -> None:
    if not isinstance(criterion, ExitCriterion):
        raise InputError(
            f'criterion: found {criterion!r}, expected one such as twoscale.make_criterion("acceleration", 0.01).'
        )
    if type(max_loops) is not int or max_loops < 1:
        raise InputError(f"max_loops: found {max_loops!r}, expected a whole number of at least 1.")
    if isinstance(criterion, Fixed):
        check_threshold("fixed", criterion.threshold, max_loops, "threshold of fixed", "max_loops")
    if not labels:
        raise InputError("model: found no looped group, expected at least one, because tokens exit from loops.")


def _frame(
    run: TrainedRun, tokens: Tensor, labels: Sequence[str], counts: parallel.LoopCounts, losses: Tensor
) -> pd.DataFrame:
    """Rows in the order of sequences, positions and groups, from counts (G, B, T) and losses (B, T)."""
    import pandas as pd

    (batch, length), groups = tokens.shape, len(labels)
    words = {token: run.tokenizer.decode([token]) for token in tokens.unique().tolist()}
    by_token = {
        "sequence": np.arange(batch).repeat(length),
        "position": np.tile(np.arange(length), batch),
        "token": [words[token] for token in tokens.flatten().tolist()],
    }
    frame = pd.DataFrame(by_token | {"ce": losses.flatten().numpy()}).loc[lambda rows: rows.index.repeat(groups)]
    by_group = {"group": [*labels] * (batch * length)}
    by_group |= {name: values.permute(1, 2, 0).flatten().numpy(force=True) for name, values in vars(counts).items()}
    frame = frame.reset_index(drop=True).assign(**by_group)
    return frame[["sequence", "position", "token", "group", "loop_steps", "evaluations", "ce"]]
