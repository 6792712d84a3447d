"""The lens against the plain forward pass, and its figure of tables with known content."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests import configs, small
from tests.figures import legend_texts
from tests.held_out import CHECKPOINT, CHOSEN, assert_numbered
from tests.studies.lens.samples import draw, lens_table
from twoscale import config, tables
from twoscale.base import InputError
from twoscale.exits import oracle as sequence_pass
from twoscale.exits.oracle import Pass, measure_tokens
from twoscale.model.interface import CausalAttention
from twoscale.model.loss import cross_entropies
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.studies.lens import study
from twoscale.studies.lens.compare import sentence, summarise_lens
from twoscale.studies.lens.config import LensConfig
from twoscale.studies.lens.measure import lost_again, measure_lens
from twoscale.studies.lens.steps import other_loops, steps_of

SEED, LENGTH, VOCABULARY = 5, 8, 37
RANDOM = torch.Generator().manual_seed(2)
TEXT = small.held_out(
    torch.randint(VOCABULARY, (3, LENGTH), generator=RANDOM),
    torch.randint(VOCABULARY, (3, LENGTH), generator=RANDOM),
    sequences=[4, 0, 7],
)
STRUCTURES = {
    "paper": {},
    "one core": {"groups": ((2, 3),)},
    "loops at both ends": {"groups": ((1,), (3, 4))},
    "noise at every step": {"loop_noise": 0.3},
    "from the input, normed exit": {"state_init": "input", "exit_norm": "final_norm"},
    "no injection": {"injection": "none", "state_init": "input", "loop_norm": True, "groups": ((3, 4),)},
}


def checkpoint(**changes):
    return small.perturbed(SEED, iteration=30, **changes)


def job(model, **keys):
    """The slice of a job: 3 mean loops, so the loop steps 0 to 24."""
    return small.job_config(model=model.config, lens=LensConfig(**{"batch_size": 2} | keys))


def rows_of(subject, **keys):
    return pd.DataFrame(measure_lens(subject, TEXT, job(subject.model, **keys)))


def logits_at(subject, loops):
    """Of the plain forward pass; `loops` of each group."""
    noise = EvaluationNoise(SEED, TEXT.sequences, LENGTH, subject.model.config.state_std)
    return subject.model(TEXT.inputs, loops, noise)


def cross_entropies_at(subject, loops):
    return cross_entropies(logits_at(subject, loops), TEXT.targets).mean(1).tolist()


@pytest.mark.parametrize("changes", STRUCTURES.values(), ids=STRUCTURES)
def test_a_state_predicts_what_the_model_predicts_with_as_many_loops_of_its_group(changes):
    subject = checkpoint(**changes)
    labels = subject.model.config.group_labels
    found = rows_of(subject)
    for group, label in enumerate(labels):
        for k in (0, 1, 4, 24):
            loops = [3] * len(labels)
            loops[group] = k
            expected = cross_entropies_at(subject, loops)
            rows = found[(found["group"] == label) & (found["k"] == k)]
            assert rows["sequence"].tolist() == list(TEXT.sequences)
            assert rows["ce"].tolist() == pytest.approx(expected, rel=1e-9)


def test_every_group_meets_the_model_at_the_loops_of_the_other_groups():
    subject = checkpoint()
    rows = rows_of(subject, other_loops=6).query("k == 6")
    expected = cross_entropies_at(subject, [6, 6])
    for _, of_group in rows.groupby("group"):
        assert of_group["ce"].tolist() == pytest.approx(expected, rel=1e-9)


def test_right_is_the_share_of_tokens_whose_most_likely_next_token_is_the_right_one():
    subject = checkpoint()
    logits = logits_at(subject, [3, 3])
    targets = torch.where(torch.arange(LENGTH) % 2 == 0, logits.argmax(-1), TEXT.targets)  # half of them are right
    text = small.held_out(TEXT.inputs, targets, TEXT.sequences)
    rows = pd.DataFrame(measure_lens(subject, text, job(subject.model))).query("k == 3 and group == '3'")
    expected = (logits.argmax(-1) == targets).double().mean(1).tolist()
    assert rows["right"].tolist() == pytest.approx(expected)
    assert min(expected) >= 0.5


def test_a_prediction_is_lost_where_it_is_wrong_and_was_right_before():
    right = torch.tensor([[0, 1, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()  # (loop steps, tokens)
    assert lost_again(right).int().tolist() == [[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]


def test_the_shares_of_lost_predictions_follow_the_paths_of_the_tokens():
    """Against a loop over tokens and loop steps, from logits of the plain forward pass."""
    subject = checkpoint(groups=((2, 3),))
    steps = steps_of(job(subject.model))
    logits = {k: logits_at(subject, [k]) for k in steps}
    # targets that are predicted at some loop steps only
    targets = torch.stack([logits[steps[1 + t % 6]][:, t].argmax(-1) for t in range(LENGTH)], dim=1)
    text = small.held_out(TEXT.inputs, targets, TEXT.sequences)
    rows = pd.DataFrame(measure_lens(subject, text, job(subject.model)))
    right = {k: logits[k].argmax(-1) == targets for k in steps}
    for i, sequence in enumerate(TEXT.sequences):
        found = rows[rows["sequence"] == sequence].set_index("k")
        for k in steps:
            earlier = [n for n in steps if 0 < n < k]
            lost = [any(right[n][i, t] for n in earlier) and not right[k][i, t] for t in range(LENGTH)]
            since = [bool(right[3][i, t] and not right[k][i, t]) for t in range(LENGTH)]
            expected = (np.mean(lost) if k else np.nan, np.mean(since) if k > 3 else np.nan)
            assert found.loc[k, ["lost", "lost_since_mean"]].tolist() == pytest.approx(expected, nan_ok=True)
    assert rows["lost"].max() > 0, "the case has to have tokens that are lost"
    assert rows["lost_since_mean"].max() > 0


def test_the_batch_and_the_size_of_the_parts_change_nothing(monkeypatch):
    subject = checkpoint()
    whole = rows_of(subject, batch_size=3)
    monkeypatch.setattr(sequence_pass, "LOGITS_AT_A_TIME", 1)  # one token at a time
    keys = ["sequence", "group", "k"]
    parts = rows_of(subject, batch_size=1).sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(whole.sort_values(keys, ignore_index=True), parts, rtol=1e-9)


def test_the_states_of_a_group_are_those_of_the_trace():
    subject = checkpoint(loop_noise=0.3)
    noise = subject.noise(TEXT.sequences)
    passing = Pass(subject.model, 5, noise, CausalAttention.of(TEXT.inputs))
    traced = [
        stage for stage in subject.model.trace(TEXT.inputs, [5, 5], noise) if stage.stage and stage.stage.is_group
    ]
    for (group, entered), stage in zip(passing.entering(TEXT.inputs), traced, strict=True):
        assert torch.equal(entered, stage.entered)
        torch.testing.assert_close(list(passing.states(group, entered, 5)), stage.states)


def test_measured_tokens_have_the_shape_of_the_targets():
    subject = checkpoint()
    measured = measure_tokens(subject.model, torch.randn(3, LENGTH, 8, dtype=torch.float64), TEXT.targets)
    assert {name: tuple(values.shape) for name, values in measured.items()} == dict.fromkeys(
        ("ce", "entropy", "rank", "predicted"), (3, LENGTH)
    )


def test_the_loop_steps_reach_eight_times_the_mean_and_contain_it():
    run = config.checked(config.preset("demo"))
    assert steps_of(run) == (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
    assert other_loops(run) == 12
    odd = config.checked(
        config.merge(config.preset("demo"), {"model": {"mean_loops": 4.6}, "lens": {"max_multiple": 3}})
    )
    assert steps_of(odd) == (0, 1, 2, 3, 4, 5, 6, 8, 12, 14)
    assert other_loops(odd) == 5
    least = config.checked(
        config.merge(config.preset("tiny"), {"model": {"mean_loops": 0.4}, "lens": {"max_multiple": 1}})
    )
    assert steps_of(least) == (0, 1)


def test_more_tokens_than_are_held_out_are_refused():
    configs.assert_refused("data.held_out_tokens", "lens.tokens", lens={"tokens": 1_000_448})


def test_a_multiple_below_one_is_refused():
    with pytest.raises(InputError, match=r"config key lens\.max_multiple: found 0\.5"):
        config.checked(config.merge(config.preset("tiny"), {"lens": {"max_multiple": 0.5}}))


def test_rows_fit_their_table(tmp_path):
    tables.write("lens", rows_of(checkpoint()).assign(run="trial"), tmp_path / "lens.parquet")
    stored = tables.read("lens", tmp_path / "lens.parquet")
    assert stored[stored["k"] == 0]["lost"].isna().all()
    assert stored[stored["k"] <= 3]["lost_since_mean"].isna().all()
    assert not stored[stored["k"] > 3][["lost", "lost_since_mean"]].isna().any(axis=None)


def test_the_summary_weighs_sequences_by_tokens_and_bounds_the_change_and_not_the_text():
    summary = summarise_lens(lens_table(groups=("3", "2")), 3)
    assert summary[["group", "k"]].to_numpy().tolist() == [[g, k] for g in ("3", "2") for k in (0, 1, 3, 24)]
    row = summary.set_index(["group", "k"]).loc["2", 1]
    assert row["ce"] == pytest.approx(4.5 + 2 / 3)
    assert (row["ce_low"], row["ce_high"]) == pytest.approx(
        (row["ce"], row["ce"])
    )  # the change is that of every document
    assert row["rank"] == pytest.approx(3 * np.exp(2 / 3))
    first = summary.set_index(["group", "k"]).loc["2", 0]
    assert first[["lost", "lost_low", "lost_since_mean"]].isna().all()


def test_the_figure_has_a_line_per_group_and_lost_predictions_start_after_the_first_loop_step():
    figure = draw()
    ce, entropy, rank, lost = figure.axes
    assert [len(axes.get_lines()) for axes in (ce, entropy, rank, lost)] == [4, 4, 3, 3]
    assert list(ce.get_lines()[1].get_xdata()) == [0, 1, 3, 24]
    assert list(lost.get_lines()[1].get_xdata()) == [1, 3, 24]
    assert list(ce.get_lines()[1].get_ydata()) == pytest.approx([0.75, 0.25, 0, 1 / 25 - 1 / 4])
    assert "linear within ±0.01" in ce.get_ylabel()
    assert ce.get_title(loc="left") == "(i)  cross-entropy, 4.92 at $k = 3$"
    assert rank.get_lines()[1].get_ydata()[-1] == pytest.approx(26 * np.exp(2 / 3))
    assert legend_texts(figure) == ["group 2", "group 3", "trained: 3.2 loops"]
    with pytest.raises(InputError, match="table lens: found no rows"):
        draw(groups=())


def test_the_table_has_the_numbers_of_the_sequences_and_of_their_documents():
    assert_numbered(measure_lens(CHECKPOINT, CHOSEN, job(CHECKPOINT.model)))


def test_the_lens_costs_at_most_what_is_planned_and_not_much_less():
    run = small.tiny()
    model = initialise(run.model, 1).requires_grad_(False)
    text = small.held_out(torch.zeros(2, run.model.context_length, dtype=torch.int64))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        list(measure_lens(small.checkpoint(model), text, run))
    once, twice = (study.JOBS[0].cost(small.tiny(lens={"tokens": 32 * count})).flops for count in (2, 4))
    assert 0.8 * (twice - once) < counter.get_total_flops() < 1.1 * (twice - once)


def test_the_report_says_what_is_lost_at_the_last_loop_step():
    lost = {"k": [3, 24, 24], "group": "5-6", "lost_since_mean": [None, 0.01, 0.03], "tokens": [9, 100, 300]}
    found = sentence(pd.DataFrame({"run": "a"} | lost))
    assert found.endswith("that are lost at 24 loops, of all tokens: 2.5 % (group 5–6).")
