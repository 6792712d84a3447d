"""Trial of exit criteria before they are measured: both engines must see the same exits.

A criterion that decides on a token from the rows of others, such as a mean over the batch, has different exits
where a text is read in parallel and where it is decoded token by token. Quality is measured in one engine and
latency in the other, so its figures would not belong together.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.config import ExitsConfig
from twoscale.exits.benchmark import operating_points
from twoscale.exits.contract import Decisions
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.criterion_file import configured_criteria
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.parallel import evaluate
from twoscale.exits.readout import make_readout
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import LoopedModel

TRIAL_TOKENS = 8
TRIAL_STEPS = 3
TOLERANCE = 1e-3  # of logits, relative and absolute


def try_criteria(checkpoint: LoadedCheckpoint, tokens: Tensor, exits: ExitsConfig) -> None:
    """Run every operating point of `exits` on the first tokens of held-out sequence 0, `tokens` (T,), in both engines.

    Raises InputError where the exits or the logits differ, where a criterion writes into the states that it is given,
    and what the engines raise about the criterion.
    Rounding can move an exit whose statistic is within a few units of the threshold, so a difference counts
    only if it is there in float64 too.
    """
    classes = configured_criteria(exits.criteria)
    tokens = tokens[:TRIAL_TOKENS]
    for name, threshold in operating_points(exits):
        if exits.criteria[name].file is not None:
            check_inputs(checkpoint.model, make_criterion(name, threshold, classes))
        difference = _difference(checkpoint, tokens, make_criterion(name, threshold, classes), exits.max_loops)
        if difference is None:
            continue
        exact = replace(checkpoint, model=copy.deepcopy(checkpoint.model).double())
        if _difference(exact, tokens, make_criterion(name, threshold, classes), exits.max_loops) is not None:
            file = exits.criteria[name].file
            where = f"exit criterion '{name}'" + (f" of the file {file}" if file else "")
            raise InputError(
                f"{where} at {threshold:g}: found {difference}, expected no difference: the decision for a token "
                "may depend only on its own row."
            )


def check_inputs(model: LoopedModel, criterion: ExitCriterion) -> None:
    """Refuse a user's criterion that changes x0 or x_new: they are the model's states, with which it goes on."""
    states = torch.randn(
        1 + TRIAL_STEPS, TRIAL_TOKENS, model.config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    states = states.to(next(model.parameters()))
    copies = states.clone()
    decisions = Decisions(criterion, copies[0], make_readout(model, criterion, "head", 0))
    for x_new in copies[1:]:
        decisions.update(x_new)
    if not torch.equal(copies, states):
        raise InputError(
            f"exit criterion file {criterion.file}: {type(criterion).__name__} changed x0 or x_new in place, expected "
            "them unchanged; write into a copy, such as x_new.clone()."
        )


def _difference(checkpoint: LoadedCheckpoint, tokens: Tensor, criterion: ExitCriterion, max_loops: int) -> str | None:
    """How the tokens (T,) come out of both engines, if not alike."""
    model = checkpoint.model
    batch = tokens[None].to(checkpoint.device)
    logits, counts = evaluate(model, batch, criterion, max_loops, checkpoint.noise([0]))
    decoder = Decoder(model, criterion, max_loops, checkpoint.seed, DecoderOptions(replay=False))
    decoded, evaluations = zip(*map(decoder.feed, tokens.tolist()), strict=True)
    found = counts.evaluations[:, 0].T  # (T, G)
    expected = torch.tensor(evaluations, device=found.device).view_as(found)
    if (wrong := (found != expected).nonzero()).numel():
        token, group = wrong[0].tolist()
        return (
            f"{found[token, group]} evaluations of token {token} in group {model.config.group_labels[group]} in "
            f"parallel and {expected[token, group]} in decoding"
        )
    if not torch.allclose(logits[0], torch.stack(decoded), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        return "the same exits in parallel and in decoding but different logits"
    return None
