"""The section and the metadata that a model's card on the hub has of its depth and its exits: models
with known answers, and what cannot be judged.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from huggingface_hub import ModelCard
from torch import nn

from tests.unit.test_recorder_depth import Affine, ce_of, record
from twoscale.base import InputError, markdown
from twoscale.cli import main
from twoscale.dynamics.run_tables import table_path
from twoscale.recorder.recorder import Recorder
from twoscale.recorder.run import hub_card
from twoscale.replay import hub
from twoscale.replay.check import check
from twoscale.replay.run_tables import RunTables, read_recorded, read_run

DOCUMENTS, LENGTH, LOOPS, NEEDED = 40, 13, 8, 4


class Resting(nn.Module):
    """A token's state moves by 1 in each loop step until the token has what it needs.

    Each loop step that it lacks lowers the logit of the next token by 1.5. Channels: the loop steps
    that count, those that the token needs, and the token, which its successor follows.
    """

    def __init__(self):
        super().__init__()
        self.step = Affine(torch.eye(7), wrap=self.rest)
        self.step.shift.data = torch.eye(7, dtype=torch.float64)[0]

    def rest(self, x):
        counted = torch.minimum(x[..., :1], x[..., 1:2])
        return torch.cat([counted, x[..., 1:]], -1)

    def forward(self, tokens, needed):
        one_hot = nn.functional.one_hot(tokens, 5).double()
        x = torch.cat([torch.zeros_like(needed)[..., None], needed[..., None], one_hot], -1)
        for _ in range(LOOPS):
            x = self.step(x)
        return x

    def decode(self, x):
        return x[..., 2:].roll(1, -1) * (4 - 1.5 * (x[..., 1:2] - x[..., :1]))


@pytest.fixture(scope="module")
def resting(tmp_path_factory):
    """A folder with such a recording, and what each target needs (40, 12): most of them little."""
    source = torch.Generator().manual_seed(0)
    first = torch.randint(5, (DOCUMENTS, 1), generator=source)
    tokens = (first + torch.arange(LENGTH)) % 5
    needed = torch.randint(-NEEDED, NEEDED + 1, tokens.shape, generator=source).clamp(min=1)
    folder = tmp_path_factory.mktemp("hub") / "resting"
    model, exits = Resting(), {"step_norm": [0.5, 1e-3], "kl": [1e-9]}
    options = {"iteration": 5, "decode": model.decode, "exits": exits}
    with Recorder(model, {"core": "step"}, folder, **options):
        for half in (slice(0, 20), slice(20, None)):
            model(tokens[half], needed[half].double())
    return folder, needed[:, :-1].numpy()


def lost(needed, depth):
    """Nats that tokens lose which leave at a depth, above full depth."""
    return ce_of(4 - 1.5 * (needed - depth).clip(0)) - ce_of(4)


def test_recorded_exits_cost_what_the_loops_of_their_tokens_cost(resting):
    """Tokens leave with the first step that does not move, one after what they need."""
    folder, needed = resting
    run = read_recorded(folder)
    assert run.depths == LOOPS
    evaluations, lost_nats, random, _ = run.points["step_norm", 0.5].T
    assert evaluations == pytest.approx((needed + 1).sum(1))
    assert lost_nats == pytest.approx(0, abs=1e-6)
    # every token at the depth of every other one
    depths = needed.reshape(-1) + 1
    expected = sum(lost(needed, depth).sum(1) for depth in depths) / len(depths)
    assert random == pytest.approx(expected, abs=1e-6)
    for depth, excess in run.fixed.items():
        assert excess == pytest.approx(lost(needed, depth).sum(1), abs=1e-6)


def test_the_folder_of_a_recording_is_checked_as_that_of_a_run(resting):
    """Fixed loops have to be as many as the token needs that needs most; the rule needs fewer."""
    folder, needed = resting
    run = read_run(folder)
    result = check(run, lambda first: run.options(), 0.01)
    assert NEEDED - 1 < result.fixed < NEEDED  # as a mean of two counts
    assert result.best.option.condition == "step_norm at 0.5"
    assert result.best.evaluations == pytest.approx((needed + 1).mean(), abs=0.1)
    assert result.best.excess.value == pytest.approx(0, abs=1e-6)


def test_the_card_of_a_recording_is_read_by_the_hub(resting):
    folder, _ = resting
    text = hub_card(folder, text="Counts, held out")
    results = ModelCard(text).data.eval_results
    found = {result.metric_type: result.metric_value for result in results}
    run = read_run(folder)
    result = check(run, lambda first: run.options(), 0.01)
    assert found == {
        "useful_loops": NEEDED,
        "regime": "settling",
        "unsettled_share": 0,
        "smallest_fixed_count": pytest.approx(result.fixed),
        "best_exit_rule": "step_norm at 0.5",
        "saving_over_random_exits": pytest.approx(result.best.random, abs=1e-4),
        "precision": "float64",
    }
    assert {(each.dataset_type, each.dataset_name) for each in results} == {
        ("counts-held-out", "Counts, held out")
    }
    assert "| useful loops | 4 (4 … 4); trained with 8, lowest loss at 4 |" in text
    assert f"**{markdown(result.sentence())}**" in text


def test_the_loop_gain_is_in_the_card_where_it_was_measured():
    row = {"group": "", "quantity": "loop_gain", "value": 0.25, "low": 0.2, "high": 0.3}
    run = RunTables(Path("none"), np.empty(0), np.empty(0), {}, {}, 1)
    gain, _ = hub.measured(pd.DataFrame([row | {"statement": ""}]), run, "float32")[1]
    assert (gain.metric, gain.value, gain.shown) == ("loop_gain", 0.25, "0.25 (0.2 … 0.3)")


def test_the_exits_in_the_card_have_the_numbers_that_were_measured():
    """Forty documents of 20 tokens: the rule takes 4 of 8 loop steps and loses nothing."""
    tokens = np.full(40, 20.0)
    points = {("entropy", 1.0): np.outer(tokens, [4, 0, 0.125, 1])}
    fixed = {4.0: 0.125 * tokens, 6.0: 0 * tokens, 8.0: 0 * tokens}
    run = RunTables(Path("none"), np.arange(40), tokens, points, fixed, 8)
    findings = pd.DataFrame({"quantity": [], "value": []})
    _, (_, count, rule, saving) = hub.measured(findings, run, "float32")
    # 4 loop steps lose 0.125 and 6 none, so 4 for 7 % of the tokens lose less than 0.01
    assert (count.value, count.shown) == (pytest.approx(5.86), "5.86 of 8")
    assert rule.shown == "entropy at 1: 4.00 loop steps, 50% fewer"
    assert (saving.value, saving.shown) == (0.125, "0.125 (0.125 … 0.125)")


def test_without_recorded_exits_the_card_has_the_fixed_count(tmp_path):
    record(tmp_path / "mine")
    text = hub_card(tmp_path / "mine")
    assert "no exit rule was tried" in text
    assert "| best exit rule | none is shown to save more than that |" in text


def test_too_few_documents_leave_the_exits_out_and_the_card_says_so(tmp_path):
    model = Resting()
    with Recorder(model, {"core": "step"}, tmp_path, iteration=5, decode=model.decode):
        model(torch.arange(9).reshape(3, 3) % 5, torch.ones(3, 3).double())
    text = hub_card(tmp_path)
    assert "Exits cannot be judged: found 3, expected at least 4 documents." in text
    metrics = {result.metric_type for result in ModelCard(text).data.eval_results}
    assert metrics == {"useful_loops", "regime", "unsettled_share", "precision"}


def test_names_in_the_card_are_text_in_markdown_and_in_yaml(tmp_path):
    record(tmp_path / "a: [b]")
    card = ModelCard(hub_card(tmp_path / "a: [b]", text="<b>|x"))
    assert card.data.model_name == "a: [b]"
    assert card.data.eval_results[0].dataset_name == "<b>|x"
    assert "on &lt;b&gt;\\|x. Losses" in card.text


def test_a_folder_without_what_the_card_needs_is_one_sentence(tmp_path, monkeypatch, capsys):
    record(tmp_path / "few", loops=2)
    record(tmp_path / "old", exits={"step_norm": [2.0]})
    table_path(tmp_path / "old", "recorded_depths", 9).unlink()
    for name, sentence in (
        ("none", "none: found no depth/iteration_*.parquet, expected a recording with decode."),
        ("few", "few: found 2 loop steps in a recording with trained_loops = 3, expected at"),
        ("old", "iteration_000009.depths.parquet: cannot be read as a parquet table"),
    ):
        monkeypatch.setattr(sys, "argv", ["twoscale", "card", str(tmp_path / name), "--hub"])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert sentence in str(stopped.value)
    with pytest.raises(InputError, match=r"found 2 loop steps, expected at least the 3 trained"):
        read_recorded(tmp_path / "few")


def test_the_command_prints_the_card_and_writes_nothing(tmp_path, monkeypatch, capsys):
    record(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["twoscale", "card", str(tmp_path), "--hub"])
    main()
    assert capsys.readouterr().out == hub_card(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
