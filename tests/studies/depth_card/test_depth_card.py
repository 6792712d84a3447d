"""The depth card: its measurement against the plain forward pass, and its findings on tables of known content."""

import weakref

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests import small
from tests.figures import legend_texts
from tests.studies.depth_card.samples import LOSSES, card, draw, quality
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import plain
from twoscale.config.definitions import loop_counts
from twoscale.dynamics import vectors
from twoscale.model.loss import cross_entropies, entropies
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise
from twoscale.studies.depth_card import compare, measure, page, study
from twoscale.studies.depth_card import figure as figures

SEED, LENGTH = 5, 8
RANDOM = torch.Generator().manual_seed(2)
TEXT = small.held_out(
    torch.randint(37, (3, LENGTH), generator=RANDOM), torch.randint(37, (3, LENGTH), generator=RANDOM), [4, 0, 7]
)
COUNTS = (1, 3, 7)
STRUCTURES = {"two groups": {}, "one core": {"groups": ((2, 3),)}, "noise at every step": {"loop_noise": 0.3}}


def logits_at(subject, loops):
    """Of the plain forward pass with the same loops in every group."""
    noise = EvaluationNoise(SEED, TEXT.sequences, LENGTH, subject.model.config.state_std)
    return subject.model(TEXT.inputs, [loops] * len(subject.model.config.groups), noise)


@pytest.mark.parametrize("changes", STRUCTURES.values(), ids=STRUCTURES)
def test_quality_is_that_of_the_plain_forward_pass_with_as_many_loops(changes):
    subject = small.perturbed(SEED, **changes)
    rows, _ = measure.measure_batch(subject, TEXT, COUNTS)
    found, previous = pd.DataFrame(rows), None
    for loops in COUNTS:
        logits, of_count = logits_at(subject, loops), found[found["loops"] == loops]
        assert of_count["sequence"].tolist() == list(TEXT.sequences)
        assert of_count["ce"].tolist() == pytest.approx(cross_entropies(logits, TEXT.targets).mean(1).tolist())
        assert of_count["entropy"].tolist() == pytest.approx(entropies(logits).mean(1).tolist())
        if previous is None:
            assert of_count["flips"].isna().all()
        else:
            assert of_count["flips"].tolist() == pytest.approx(
                (logits.argmax(-1) != previous).double().mean(1).tolist()
            )
        previous = logits.argmax(-1)
    assert found["flips"].max() > 0, "the case has to have predictions that flip"


@pytest.mark.parametrize("changes", STRUCTURES.values(), ids=STRUCTURES)
def test_states_are_those_of_the_trace_at_the_largest_loop_count(changes):
    subject = small.perturbed(SEED, **changes)
    _, rows = measure.measure_batch(subject, TEXT, COUNTS)
    found, last = pd.DataFrame(rows), COUNTS[-1]
    traced = subject.model.trace(TEXT.inputs, [last] * len(subject.model.config.groups), subject.noise(TEXT.sequences))
    for stage in (stage for stage in traced if stage.stage and stage.stage.is_group):
        label = subject.model.config.group_labels[stage.stage.group]
        own = found[found["group"] == label].set_index(["k", "sequence"]).sort_index()
        for k in range(last):
            before, after = stage.states[k], stage.states[k + 1]
            directions = [state / vectors.norm(state)[..., None] for state in (before, after)]
            expected = {
                "state_norm": vectors.norm(before),
                "step_norm": vectors.norm(after - before),
                "direction_step_norm": vectors.norm(directions[1] - directions[0]),
            }
            for i, sequence in enumerate(TEXT.sequences):
                for name, values in expected.items():
                    assert own.loc[(k, sequence), name] == pytest.approx(values[i].quantile(0.5).item())
        assert own["cosine"].isna().groupby("k").all().tolist() == [True] + [False] * last
        assert own.loc[last]["step_norm"].notna().all()  # one loop step more is taken


def test_the_batch_changes_nothing():
    subject = small.perturbed(SEED)
    whole = measure.measure_batch(subject, TEXT, COUNTS)
    parts = [measure.measure_batch(subject, TEXT[i : i + 1], COUNTS) for i in range(3)]
    for table, keys in enumerate((["loops", "sequence"], ["group", "k", "sequence"])):
        frames = pd.DataFrame(whole[table]), pd.concat([pd.DataFrame(part[table]) for part in parts])
        pd.testing.assert_frame_equal(*(frame.sort_values(keys, ignore_index=True) for frame in frames))


def test_a_model_without_groups_has_its_loss_and_no_states():
    subject = small.perturbed(SEED, groups=())
    rows, no_states = measure.measure_batch(subject, TEXT, (1,))
    assert [row["ce"] for row in rows] == pytest.approx(
        cross_entropies(logits_at(subject, 1), TEXT.targets).mean(1).tolist()
    )
    assert no_states == []


def test_few_states_are_held_at_a_time():
    alive, most = [], []
    for _ in measure.loop_steps(_counted(alive, 50)):
        most.append(sum(reference() is not None for reference in alive))
    assert len(most) == 49
    assert max(most) <= 3


def _counted(alive, number):
    for k in range(number):
        state = torch.full((2, 3), float(k))
        alive.append(weakref.ref(state))
        yield state


def test_the_loop_counts_are_multiples_of_the_trained_loops_with_themselves():
    assert loop_counts(3) == (1, 2, 3, 6, 9, 12, 15, 18, 21, 24)
    assert loop_counts(12, (0.5, 2), most=20) == (6, 12)
    assert loop_counts(4.4, (8,)) == (4, 35)


def test_best_loops_plateau_and_their_intervals():
    _, findings = card()
    found = findings[findings["group"] == ""].set_index("quantity")
    assert found.loc[["trained_loops", "best_loops", "plateau_first"], "value"].tolist() == [3, 6, 3]
    assert found.loc["plateau_last", "value"] == 6  # 12 loops are 0.011 nats above
    assert found.loc["trained_excess", "value"] == pytest.approx(0.005, abs=1e-3)
    assert found.loc["trained_excess", "low"] < 0.005 < found.loc["trained_excess", "high"]
    assert np.isnan(found.loc["loop_gain", "value"])
    assert "not measured" in found.loc["loop_gain", "statement"]


def test_a_wider_tolerance_has_a_wider_plateau_without_a_gap():
    gap = {1: 4.0, 2: 2.999, 3: 3.2, 6: 2.995, 12: 3.006, 24: 3.3}
    for tolerance, ends in ((1e-4, [6, 6]), (0.02, [6, 12]), (0.21, [2, 12]), (9.0, [1, 24])):
        _, findings = card(gap, tolerance=tolerance)
        found = findings.set_index("quantity")["value"]
        assert found[["plateau_first", "plateau_last"]].tolist() == ends
    _, findings = card({1: 4.0, 2: 3.0, 3: 3.2, 6: 3.002})  # 6 is within the tolerance, and 3 is not
    assert findings.set_index("quantity")["value"][["plateau_first", "plateau_last"]].tolist() == [2, 2]


def test_the_loop_gain_is_the_loss_without_loops_minus_that_at_the_trained_loops_on_the_same_documents():
    _, findings = card(unlooped=quality({1: 3.5}))
    gain = findings.set_index("quantity").loc["loop_gain"]
    assert gain["value"] == pytest.approx(0.5, abs=1e-3)
    assert 0.49 < gain["low"] < gain["value"] < gain["high"] < 0.51  # documents differ by nats, alike in both
    with pytest.raises(InputError, match="the table depth_quality has other sequences"):
        card(unlooped=quality({1: 3.5}, tokens=50))


@pytest.mark.parametrize(
    ("norms", "name"),
    [
        ({"step": lambda k: 0.5**k}, "settling"),
        ({"step": lambda k: 1.0, "norm": lambda k: k + 1.0}, "drifting"),
        ({"step": lambda k: 1.0}, "marginal"),
    ],
)
def test_the_regime_of_each_group_is_that_of_its_norms(norms, name):
    _, findings = card(**norms)
    regimes = findings[findings["quantity"] == "regime"]
    assert regimes["group"].tolist() == ["2", "3"]
    assert regimes["statement"].str.startswith(name).all()


def test_the_card_has_each_quantity_at_each_loop_count_weighted_by_tokens():
    found, _ = card()
    of = found.set_index(["quantity", "group", "loops"])["value"]
    rows = quality()
    at = rows[rows["loops"] == 6]
    assert of["ce", "", 6] == pytest.approx(np.average(at["ce"], weights=at["tokens"]))
    assert of["excess", "", 6] == 0
    assert of["flips", "", 6] == pytest.approx(1 / 6)
    assert ("flips", "", 1) not in of.index
    assert of["step_norm", "3", 12] == pytest.approx(0.5**12)
    assert set(found.loc[found["loops"] == 6, "multiple"]) == {2.0}


def test_tables_and_page(tmp_path):
    found, findings = card(unlooped=quality({1: 3.5}))
    for name, table in (("depth_card", found), ("depth_findings", findings)):
        tables.write(name, table[list(tables.columns(name))], tmp_path / name)
    text = page.page(found, findings, "a|b", {"text": "c"}, "depth_card.svg")
    assert "# Depth card: a\\|b" in text
    (loss,) = found[(found["quantity"] == "ce") & (found["loops"] == 6)]["value"]
    assert f"| 6 | 2 | {loss:.3f} |" in text
    assert "| best loops | 6 |" in text
    assert "| loop gain, nats | 0.5 |" in text
    assert text.count("Group ") == 4
    assert "![Loss and geometry against loops](depth_card.svg)" in text
    assert "nan" not in text


def test_the_figure_has_the_plateau_and_a_line_per_group():
    figure = draw(unlooped=quality({1: 3.5}))
    assert legend_texts(figure) == ["plateau", "without loops", "group 2", "group 3", "trained: 3 loops"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [3, 2, 5, 3]
    assert list(figure.axes[0].get_lines()[0].get_xdata()) == list(LOSSES)
    assert "without loops" not in legend_texts(draw())
    found, findings = card()
    with pytest.raises(InputError, match="table depth_card: found no rows"):
        figures.draw(found.head(0), findings, context=None)


def test_the_measurement_costs_at_most_what_is_planned_and_not_much_less():
    run = small.tiny()
    model = initialise(run.model, 1).requires_grad_(False)
    text = small.held_out(torch.zeros(2, run.model.context_length, dtype=torch.int64))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        measure.measure_batch(small.checkpoint(model), text, measure.counts_of(run))
    once, twice = (
        study.JOBS[0].cost(small.tiny(depth_card={"tokens": run.model.context_length * count})).flops
        for count in (2, 4)
    )
    assert 0.8 * (twice - once) < counter.get_total_flops() < 1.1 * (twice - once)


def test_tolerance_and_unlooped_run_are_no_part_of_the_measurement():
    row = small.job_row(study.JOBS, "measure_depth")
    plan = [small.project(depth_card=keys) for keys in ({}, {"tolerance": 0.5}, {"multiples": [1, 2]})]
    slices = [row.config(runs)(small.of()) for runs in plan]
    assert slices[0] == slices[1] != slices[2]
    assert plain(plan[1].config.depth_card)["tolerance"] == 0.5


def test_the_run_without_loops_is_the_named_one_or_a_trained_baseline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = small.job_row(study.JOBS, "compare_depths")
    twin = {"runs": {"plain": {"model": {"groups": []}}}}
    named = small.project(depth_card={"unlooped": "plain"}, **twin)
    inputs = row.inputs(named)
    assert inputs["unlooped"](small.of()) == ["results/plain/depth_card/iteration_000020.quality.parquet"]
    assert inputs["unlooped_text"](small.of()) == ["results/tiny/data/tokens.json"]
    runs = small.project(baselines={"overrides": {}})
    assert row.inputs(runs)["unlooped"](small.of()) == []
    checkpoint = tmp_path / runs.paths.checkpoint(study.BASELINE, runs.paths.iterations(study.BASELINE)[-1])
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    assert row.inputs(runs)["unlooped"](small.of()) == [study.QUALITY.format(run=study.BASELINE, iteration="000020")]
    with pytest.raises(InputError, match=r"depth_card.unlooped: found plan, expected one of the runs .*mean plain"):
        row.inputs(small.project(depth_card={"unlooped": "plan"}, **twin))["unlooped"](small.of())


def test_another_text_is_refused():
    with pytest.raises(InputError, match="found the run plain with other held-out tokens"):
        compare.check_same_text({"val.bin": "a"}, {"val.bin": "b"}, "plain")
    compare.check_same_text({"val.bin": "a", "train.bin": "a"}, {"val.bin": "a"}, "plain")


def test_the_report_names_the_best_loops():
    losses = card()[0].query("quantity == 'ce'").set_index("loops")["value"]
    assert compare.sentence(card()[0]) == (
        f"Lowest cross-entropy {losses[6]:.3f} nats per token at 6 loops, {losses[3]:.3f} at the trained 3."
    )
