"""The trial of an exit criterion: both engines have to see the same exits."""

import copy
from dataclasses import replace

import pytest
import torch

from tests import small
from twoscale import config
from twoscale.base import InputError
from twoscale.exits import benchmark as trial
from twoscale.exits.benchmark import TRIAL_TOKENS, try_criteria
from twoscale.exits.criteria import CRITERIA
from twoscale.model.transformer import initialise

SEED = 11
CONTEXT_LENGTH = 12
TOKENS = torch.randint(37, (CONTEXT_LENGTH,), generator=torch.Generator().manual_seed(5))
MODEL = initialise(small.model_config(hidden_size=16, context_length=CONTEXT_LENGTH), 0)
CHECKPOINT = small.checkpoint(MODEL, SEED)

CRITERION = """from twoscale.exits.criteria import ExitCriterion


class Mine(ExitCriterion):
    def start(self, x0):
        return {{"x": x0}}

    def update(self, state, x_new, readout):
        step = (x_new - state["x"]).norm(dim=-1)
        return {decision}, {{"x": x_new}}
"""


def try_mine(tmp_path, decision, thresholds=(1.0, 3.0)):
    (tmp_path / "mine.py").write_text(CRITERION.format(decision=decision))
    mine = {"thresholds": thresholds, "file": str(tmp_path / "mine.py"), "class": "Mine"}
    try_criteria(CHECKPOINT, TOKENS, config.ExitsConfig(max_loops=6, criteria={"mine": mine}))


def test_a_criterion_that_decides_on_each_token_alone_passes(tmp_path):
    try_mine(tmp_path, "step < self.threshold")


@pytest.mark.parametrize(
    "decision",
    ["(step.mean() < self.threshold).expand(len(step))", "step < self.threshold * step.max() / 2"],
    ids=["mean of the batch", "relative to the batch"],
)
def test_a_criterion_that_looks_at_other_tokens_is_refused(tmp_path, decision):
    sentence = (
        r"^exit criterion 'mine' of the file .*mine\.py at \d\S*: found \d evaluations of token \d in group [23] in "
        r"parallel and \d in decoding, expected no difference: the decision for a token may depend only on its own row"
    )
    with pytest.raises(InputError, match=sentence):
        try_mine(tmp_path, decision)


def test_a_criterion_that_disagrees_at_one_threshold_only_is_refused(tmp_path):
    decision = "step < self.threshold * (1 if self.threshold < 2 else len(step))"
    try_mine(tmp_path, decision, [1.0])
    with pytest.raises(InputError, match="at 3: found"):
        try_mine(tmp_path, decision)


def test_different_logits_behind_the_same_exits_are_refused(tmp_path):
    with pytest.raises(InputError, match="the same exits in parallel and in decoding but different logits"):
        try_mine(tmp_path, "(x_new.add_(1) if len(x_new) == 1 else x_new)[:, 0] > 1e9")


@pytest.mark.parametrize("decision", ["x_new.mul_(0.5)[:, 0] > 1e9", "state['x'].zero_()[:, 0] > 1e9"])
def test_a_criterion_that_writes_into_the_states_of_the_model_is_refused(tmp_path, decision):
    with pytest.raises(InputError, match=r"mine\.py: Mine changed x0 or x_new in place, expected them unchanged"):
        try_mine(tmp_path, decision)


@pytest.mark.parametrize("decision", ["step.norm() < 1", "1 / 0"], ids=["faulty", "crashing"])
def test_what_the_engines_refuse_ends_the_trial(tmp_path, decision):
    with pytest.raises(InputError, match=r"exit criterion file .*mine\.py.* Mine\.update r"):
        try_mine(tmp_path, decision)


def test_the_built_in_criteria_pass():
    criteria = {name: {"thresholds": [2]} for name in CRITERIA}
    gated = {"hidden_size": 16, "context_length": CONTEXT_LENGTH, "exit_gate": True}
    for changes in (gated, {"groups": ()}):
        checkpoint = small.checkpoint(initialise(small.model_config(**changes), 0))
        try_criteria(
            checkpoint, TOKENS[: checkpoint.model.config.context_length], config.ExitsConfig(criteria=criteria)
        )


def test_a_difference_that_float64_does_not_have_is_rounding(tmp_path, monkeypatch):
    """A criterion cannot help a threshold within rounding of its statistic."""
    dtypes = []

    def difference(checkpoint, tokens, criterion, max_loops):
        dtypes.append(next(checkpoint.model.parameters()).dtype)
        return "some" if dtypes[-1] == torch.float32 else None

    monkeypatch.setattr(trial, "_difference", difference)
    try_mine(tmp_path, "step < self.threshold", [1.0])
    assert dtypes == [torch.float32, torch.float64]
    assert next(MODEL.parameters()).dtype == torch.float32


def test_the_trial_is_over_after_a_few_tokens(tmp_path, monkeypatch):
    """Whatever the length of the text."""
    rows = []
    model = copy.deepcopy(MODEL)
    model.groups[0].register_forward_hook(lambda module, inputs, output: rows.append(inputs[0][..., 0].numel()))
    exits = config.ExitsConfig(max_loops=6, criteria={"fixed": {"thresholds": [6]}})
    try_criteria(replace(CHECKPOINT, model=model), TOKENS, exits)
    assert sum(rows) == 2 * 6 * TRIAL_TOKENS
