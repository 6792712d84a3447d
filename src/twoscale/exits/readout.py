"""Functions from states to predictions for exit criteria (`exits.readout`).

`head` decodes a state directly (§4). `remaining_layers` decodes a state of the last group as the model would
continue with it, through the layers after the group (Geiping et al., `predict_from_latents`). Earlier tokens
are then seen with the states they left the group with, so positions are read one after another. Tokens loop
again after earlier groups; states of those groups go to the head directly.
"""

from collections.abc import Sequence
from functools import partial
from typing import cast

from torch import Tensor

from twoscale.base import InputError
from twoscale.exits.criteria import ExitCriterion
from twoscale.model.interface import Attend, Gated, LoopedModel, Readout, Stage

READOUTS = ("head", "remaining_layers")


def is_sequential(criterion: ExitCriterion, readout: str) -> bool:
    """Whether a text can be read under the criterion only position by position."""
    return readout == "remaining_layers" and criterion.needs_readout


def require_parallel(criterion: ExitCriterion, readout: str) -> None:
    if is_sequential(criterion, readout):
        raise InputError(
            "exits.readout: found remaining_layers, expected head for positions computed in parallel; with the "
            "remaining layers, a prediction needs the exit states of earlier tokens."
        )


def require_gate(model: LoopedModel) -> Gated:
    """The model, refused if it has no exit gate."""
    if getattr(model, "gate", None) is None:
        raise InputError("exit criterion: needs an exit gate, expected a model with model.exit_gate: true.")
    return cast(Gated, model)


def make_readout(
    model: LoopedModel, criterion: ExitCriterion, readout: str, group: int, attend: Attend | None = None
) -> Readout:
    """The function that a criterion gets in `group`: states (N, C) -> logits (N, V), or the model's exit gate.

    `attend` is the attention of unlooped layers at the position of the token; only `remaining_layers` uses it.
    """
    if criterion.needs_gate:
        return require_gate(model).exit_gate
    if readout == "head":
        return model.readout
    if not criterion.needs_readout:
        return _undeclared
    if group != len(model.config.groups) - 1:
        return model.readout
    return partial(_through_remaining_layers, model, group, attend)


def _through_remaining_layers(model: LoopedModel, group: int, attend: Attend | None, x: Tensor) -> Tensor:
    """Logits (1, V) of the state x (1, C) of the one token that loops in the last group."""
    assert attend is not None
    hidden = model.finish(group, x)
    for stage in stages_behind(model, group):
        hidden = model.unlooped_layer(stage.index, hidden, attend)
    return model.readout(hidden)


def stages_behind(model: LoopedModel, group: int) -> Sequence[Stage]:
    """The stages after a group, in the order of the model."""
    return model.stages[[stage.group for stage in model.stages].index(group) + 1 :]


def _undeclared(x: Tensor) -> Tensor:
    raise InputError("exit criterion: calls readout, expected needs_readout = True in its class.")
