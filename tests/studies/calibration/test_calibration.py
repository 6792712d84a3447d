"""Calibrated thresholds: Learn then Test, held-out text under exit criteria, guarantees with known outcomes, figure."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from tests import configs, small
from tests.small import job_row, of, project
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import ExitsConfig
from twoscale.exits.criteria import make_criterion
from twoscale.exits.evaluation import TextEvaluator
from twoscale.exits.parallel import evaluate
from twoscale.model.loss import cross_entropies
from twoscale.studies.calibration.draw import NO_THRESHOLD, betting, calibrate, fixed_sequence
from twoscale.studies.calibration.measure import (
    PARTS,
    measure_calibration,
    measure_text,
    order_points,
    own_tokens,
    split_documents,
)
from twoscale.studies.calibration.study import JOBS, CalibrationConfig

SEED, LENGTH, MAX_LOOPS, END = 5, 8, 6, 36
DELTA = 0.1


# --- Learn then Test ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [0.01, 0.2, 1.0, 20.0])
def test_the_p_value_is_super_uniform_for_losses_of_every_shape(shape):
    """From coins to losses that vary little, on the border of the hypothesis."""
    losses = np.random.default_rng(0).beta(shape, 4 * shape, size=(2000, 25))  # mean 0.2
    p_values = np.array([betting(sample, 0.2, DELTA) for sample in losses])
    for bound in (0.01, 0.05, 0.1, 0.3):
        deviation = np.sqrt(bound * (1 - bound) / len(losses))
        assert (p_values <= bound).mean() <= bound + 4 * deviation


def test_bets_and_a_sequence_of_tests_have_known_results():
    assert betting(np.zeros(13), 0.2, DELTA) == pytest.approx(1.2**-13)
    assert betting(np.ones(13), 0.2, DELTA) == 1
    assert betting(np.full(20, 0.06), 0.2, DELTA) < DELTA
    for p_values, rejected in {(): 0, (0.2, 0.001): 0, (0.1,): 1, (0.01, 0.05, 0.2, 0.001): 2, (0.0, 0.0): 2}.items():
        assert fixed_sequence(p_values, 0.1) == rejected


def test_a_guarantee_is_broken_as_rarely_as_it_says_and_thresholds_are_not_wasted():
    """Points of rising risk, a third of them above the level; the losses of a unit at all points belong together."""
    random, level, repeats = np.random.default_rng(1), 0.2, 1000
    risks = np.linspace(0.02, 0.3, 15)
    chosen = np.zeros(repeats)
    for repeat in range(repeats):
        units = random.beta(0.5, 0.5, size=60)  # mean 0.5, most of them near 0 or 1
        accepted = fixed_sequence([betting(2 * risk * units, level, DELTA) for risk in risks], DELTA)
        chosen[repeat] = risks[accepted - 1] if accepted else 0.0
    assert (chosen > level).mean() <= DELTA + 4 * np.sqrt(DELTA * (1 - DELTA) / repeats)
    assert np.median(chosen) > 0.4 * level


# How often a guarantee is broken beyond what it says: docs/studies.md, "Calibrated thresholds", has these shares.
EPSILON, CLIP = 0.01, 5.0
RISKS = EPSILON * np.geomspace(0.1, 3, 12)  # mean losses of the points of a path


def broken_guarantees(draw, repeats=1000):
    """Shares of calibrations whose chosen point has a mean loss above epsilon: clipped as in the test, and as it is.

    draw: random source -> losses of the units of one calibration (n,) over the mean loss of a point.
    """
    random, bound = np.random.default_rng(3), CLIP * EPSILON
    population = np.concatenate([draw(random) for _ in range(5000)])
    truths = np.array([(np.clip(risk * population, 0, bound).mean(), risk * population.mean()) for risk in RISKS])
    broken = np.zeros((repeats, 2), dtype=bool)
    for repeat in range(repeats):
        losses = draw(random)
        p_values = [betting(np.clip(risk * losses, 0, bound) / bound, 1 / CLIP, DELTA) for risk in RISKS]
        if accepted := fixed_sequence(p_values, DELTA):
            broken[repeat] = truths[accepted - 1] > EPSILON
    return broken.mean(axis=0)


def rare_losses(random):
    """60 documents, of which 5 % lose twenty-fold and all others nothing."""
    return 20.0 * (random.random(60) < 0.05)


def test_a_guarantee_says_nothing_about_losses_beyond_the_clip():
    clipped, unclipped = broken_guarantees(rare_losses)
    assert clipped == 0
    assert unclipped > 0.85


# --- measurements ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [3, 4, 11, 200])
def test_documents_are_divided_at_random_with_all_parts_present(number):
    documents = [2 * n for n in range(number) for _ in range(3)]
    parts = split_documents(documents, SEED)
    assert set(parts) == set(documents)
    counts = {part: list(parts.values()).count(part) for part in PARTS}
    assert min(counts.values()) >= 1
    assert number != 200 or counts == {"search": 50, "report": 50, "calibration": 100}
    assert parts == split_documents(documents[::-1], SEED)
    assert number < 11 or parts != split_documents(documents, SEED + 1)
    with pytest.raises(InputError, match=r"^config key calibration\.tokens: found 2 documents"):
        split_documents([4, 4, 7], SEED)


def test_the_tokens_behind_the_first_end_of_text_belong_to_another_document():
    inputs = torch.tensor([[1, 2, 9, 3, 9, 4], [9, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 9]])
    assert own_tokens(inputs, 9).int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1] * 6]


def test_thresholds_are_ordered_by_evaluations_and_end_with_the_first_that_loses_too_much():
    rising = {("kl", n): (0.05 * n, 10.0 - n) for n in (1, 4, 2, 3)}
    assert [threshold for _, threshold in order_points(rising)] == [1, 2, 3, 4]
    assert [threshold for _, threshold in order_points({("kl", n): (0.0, n) for n in (1, 3, 2)})] == [3, 2, 1]
    steep = {("kl", n): (0.2 * n, 10.0 - n) for n in (1, 2, 3, 4)}
    assert [threshold for _, threshold in order_points(steep)] == [1, 2]  # 0.4 nats


def held_out(number=9):
    """Sequences of as many documents; every third one has another document from its fourth token on."""
    random = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randint(END, (number, LENGTH), generator=random) for _ in range(2))
    inputs[::3, 3] = END
    return small.held_out(inputs, targets)


def exits(**thresholds):
    criteria = {name: {"thresholds": values} for name, values in thresholds.items()}
    return ExitsConfig(criteria=criteria, max_loops=MAX_LOOPS, dtype="float64", quality_batch_size=4)


def test_a_sequence_is_measured_by_its_own_tokens():
    checkpoint, text, criterion = small.perturbed(SEED), held_out(4), make_criterion("fixed", 3)
    own = own_tokens(text.inputs, END).double()
    found = measure_text(TextEvaluator(checkpoint, exits(fixed=[3])), text, criterion, own)
    logits, _ = evaluate(checkpoint.model, text.inputs, criterion, MAX_LOOPS, checkpoint.noise(text.sequences))
    assert own.sum(1).tolist() == [4, 8, 8, 4]
    for row, tokens in enumerate((4, 8, 8, 4)):
        expected = cross_entropies(logits, text.targets)[row, :tokens].mean().item()
        assert found["ce"][row].item() == pytest.approx(expected)
    assert found["evaluations"].tolist() == [3] * 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The table of a criterion with three thresholds, written and read."""
    checkpoint, path = small.perturbed(SEED), tmp_path_factory.mktemp("calibration") / "runs"
    config = small.job_config(model=checkpoint.model.config, exits=exits(step_norm=[0.1, 1.0, 10.0]))
    rows = measure_calibration(checkpoint, held_out(), config, END)
    tables.write("calibration_runs", pd.DataFrame(rows).assign(run="trial"), path)
    return tables.read("calibration_runs", path)


def test_no_document_of_the_search_is_measured_and_the_parts_share_none(measured):
    parts = split_documents(held_out().documents, 1)
    for part in ("calibration", "report"):
        expected = {document for document, its_part in parts.items() if its_part == part}
        assert set(measured.loc[measured["part"] == part, "document"]) == expected
    assert len(set(held_out().documents) - set(measured["document"])) == 2
    evaluator, own = TextEvaluator(small.perturbed(SEED), exits(fixed=[3])), own_tokens(held_out().inputs, END).double()
    full, found = (
        measure_text(evaluator, held_out(), make_criterion(*point), own)
        for point in (("fixed", MAX_LOOPS), ("step_norm", 1.0))
    )
    rows = measured[measured["threshold"] == 1.0]
    for column, values in (found | {"full_depth_ce": full["ce"], "tokens": own.sum(1)}).items():
        assert rows[column].tolist() == pytest.approx(values[rows["sequence"].tolist()].tolist())


def test_a_calibration_depends_on_its_grid_and_on_no_guarantee():
    def job(**keys):
        return job_row(JOBS, "measure_calibration").config(project(calibration=keys))(of(criterion="kl"))

    values = json.loads(job())
    assert values["exits"]["criteria"] == {"kl": {"thresholds": [0.001, 0.01, 0.1]}}
    assert values["sequences"] == 32
    assert job() == job(nats=[0.5]) == job(criteria={"step_norm": {"thresholds": [2.0]}})
    assert job() != job(criteria={"kl": {"thresholds": [0.5]}})
    assert job() != job(tokens=512)
    for tokens, sequences in ((1, 1), (1024, 2), (10**9, 100)):
        config = configs.paper(calibration={"tokens": tokens}, data={"held_out_tokens": 100 * 512 + 1})
        assert config.calibration.sequences(config) == sequences


# --- guarantees --------------------------------------------------------------------------------------------------


def runs_table(rises, evaluations=(6, 4, 2), documents=40, sequences=1):
    """Points whose cross-entropy rises by so much in every document; the first half of them calibrates."""
    rows = [
        {"run": "trial", "criterion": "kl", "point": index, "threshold": 0.1 * index}
        | {"part": "calibration" if document < documents // 2 else "report"}
        | {"sequence": sequences * document + number, "document": document, "tokens": 10 + number}
        | {"ce": 4 + rise, "full_depth_ce": 4.0, "evaluations": float(spent)}
        for index, (rise, spent) in enumerate(zip(rises, evaluations, strict=True))
        for document in range(documents)
        for number in range(sequences)
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("calibration_runs")))


def guaranteed(runs, **keys):
    return calibrate(runs, CalibrationConfig(**{"nats": (0.05,)} | keys), max_loops=10, seed=0)


def test_the_point_with_fewest_evaluations_that_the_test_accepts_is_chosen():
    (row,) = guaranteed(runs_table((0.0, 0.01, 0.06))).to_dict("records")
    assert (row["point"], row["threshold"], row["units"], row["report_documents"]) == (1, 0.1, 20, 20)
    assert [row[name] for name in ("saved", "saved_low", "saved_high")] == pytest.approx([0.6] * 3)
    assert [row[name] for name in ("loss", "unclipped")] == pytest.approx([0.01] * 2)
    assert row["verdict"] == "holds"
    assert row["p_value"] <= 0.1
    assert guaranteed(runs_table((0.0, 0.01, 0.012), evaluations=(6, 3, 4)))["point"].item() == 1


def test_nothing_is_chosen_behind_a_point_that_the_test_does_not_accept():
    row = guaranteed(runs_table((0.06, 0.0, 0.0))).iloc[0]
    assert (row["point"], row["verdict"], row["saved"], row["loss"]) == (-1, NO_THRESHOLD, 0, 0)
    assert np.isnan(row["threshold"])
    assert row["p_value"] > 0.1


def test_with_fewer_units_than_the_clip_requires_nothing_can_be_guaranteed():
    """log(10) / log(1 + 1/5) = 12.6 units."""
    for units, index in ((12, -1), (13, 2)):
        assert guaranteed(runs_table((0.0,) * 3, documents=2 * units))["point"].item() == index


def test_a_loss_that_the_report_has_and_the_calibration_had_not_breaks_the_guarantee():
    runs = runs_table((0.0, 0.0, 0.0))
    runs.loc[runs["part"] == "report", "ce"] += np.where(runs[runs["part"] == "report"]["point"] == 2, 0.2, 0.0)
    row = guaranteed(runs).iloc[0]
    assert (row["point"], row["verdict"]) == (2, "does not hold")
    assert row["loss"] == pytest.approx(0.2)
    large = runs.assign(ce=runs["ce"] + 9 * (runs["ce"] > 4))
    row = guaranteed(large).iloc[0]
    assert (row["loss"], row["unclipped"]) == pytest.approx((0.25, 9.2))  # 5 epsilon, and all of it


@pytest.mark.parametrize(("documents", "verdict"), [(1, "cannot be judged"), (2, "holds")])
def test_a_loss_has_an_interval_from_two_documents_of_the_report_on(documents, verdict):
    runs = runs_table((0.0,), evaluations=(2,))
    row = guaranteed(runs[(runs["part"] == "calibration") | (runs["document"] < 20 + documents)]).iloc[0]
    assert (row["report_documents"], row["verdict"]) == (documents, verdict)
    assert np.isfinite([row["saved_low"], row["saved_high"]]).all() == (documents == 2)


def test_a_document_counts_once_with_all_of_its_sequences():
    runs = runs_table((0.0,), evaluations=(2,), sequences=3)
    runs["ce"] = 4 + runs["sequence"] % 3 * 0.1
    row = guaranteed(runs, nats=(0.5,)).iloc[0]
    assert (row["units"], row["report_documents"]) == (20, 20)
    assert row["loss"] == pytest.approx((11 * 0.1 + 12 * 0.2) / 33)
