"""Calibrated thresholds: paths of known cost, held-out text under them, guarantees with known outcomes, the figure."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from tests import configs, small
from tests.figures import legend_texts
from tests.studies.calibration.samples import draw
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import ExitsConfig
from twoscale.exits.criteria import make_criterion
from twoscale.exits.evaluation import TextEvaluator
from twoscale.exits.parallel import evaluate
from twoscale.model.loss import cross_entropies
from twoscale.studies.calibration import study
from twoscale.studies.calibration.compare import NO_THRESHOLD, calibrate, chosen_thresholds, unit_losses
from twoscale.studies.calibration.config import GuaranteesConfig
from twoscale.studies.calibration.measure import (
    PARTS,
    Cost,
    MeasuredText,
    measure_calibration,
    own_tokens,
    search_paths,
    select,
    split_documents,
)
from twoscale.studies.calibration.per_group import make_per_group

SEED, LENGTH, VOCABULARY, MAX_LOOPS, END = 5, 8, 37, 6, 36


@pytest.mark.parametrize("number", [3, 4, 11, 200])
def test_documents_are_divided_at_random_with_all_parts_present(number):
    documents = [2 * n for n in range(number) for _ in range(3)]
    parts = split_documents(documents, 0.25, 0.25, SEED)
    assert set(parts) == set(documents)
    counts = [list(parts.values()).count(part) for part in PARTS]
    assert min(counts) >= 1
    if number == 200:
        assert counts == [50, 100, 50]
    assert parts == split_documents(documents[::-1], 0.25, 0.25, SEED)
    assert number < 11 or parts != split_documents(documents, 0.25, 0.25, SEED + 1)


def test_shares_that_leave_no_document_still_give_every_part_one():
    assert sorted(split_documents(range(3), 0.9, 0.05, SEED).values()) == sorted(PARTS)
    assert sorted(split_documents(range(4), 0.05, 0.9, SEED).values()).count("report") == 2


def test_too_few_documents_are_refused_in_one_sentence():
    with pytest.raises(InputError, match=r"^config key calibration\.tokens: found 2 documents .*, expected at least 3"):
        split_documents([4, 4, 7], 0.25, 0.25, SEED)


def test_the_tokens_behind_the_first_end_of_text_belong_to_another_document():
    inputs = torch.tensor([[1, 2, 9, 3, 9, 4], [9, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 9]])
    assert own_tokens(inputs, 9).int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1] * 6]


def costs_of(*slopes, first=10.0, descending=False):
    """Cost of thresholds 1, 2, …: in each group one evaluation less a rung, and `slope` nats more."""

    def measure(thresholds):
        rungs = [5 - threshold if descending else threshold for threshold in thresholds]
        excess = sum(slope * (rung - 1) for slope, rung in zip(slopes, rungs, strict=True))
        return Cost(excess, tuple(first - rung for rung in rungs))

    return measure


def most_saved(path, measure, epsilon):
    """Fewest evaluations on a path among the points that cost at most `epsilon`."""
    costs = [measure(point) for point in path]
    return min(cost.total for cost in costs if cost.excess <= epsilon + 1e-12)


def test_the_path_of_groups_lowers_the_cheapest_group_first_and_saves_at_least_as_much():
    measure = costs_of(0.001, 0.1, 0.01)
    paths = search_paths((1, 2, 3, 4), 3, measure, end=10.0)
    assert paths["common"] == [(n, n, n) for n in (1, 2, 3, 4)]
    assert paths["per_group"][:4] == [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1)]
    assert paths["per_group"][4:7] == [(4, 1, 2), (4, 1, 3), (4, 1, 4)]
    assert paths["per_group"][-1] == (4, 4, 4)
    for epsilon in (0.0, 0.003, 0.033, 0.1, 0.2, 0.34):
        per_group, common = (most_saved(paths[name], measure, epsilon) for name in ("per_group", "common"))
        assert per_group <= common
    assert most_saved(paths["per_group"], measure, 0.033) < most_saved(paths["common"], measure, 0.033)


def test_a_point_of_the_path_of_groups_differs_from_the_one_before_in_one_group():
    path = search_paths((1, 2, 3, 4), 2, costs_of(0.02, 0.01), end=10.0)["per_group"]
    for before, after in pairwise(path):
        assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_a_path_begins_with_most_evaluations_also_where_larger_thresholds_have_more():
    paths = search_paths((1, 2, 3, 4), 2, costs_of(0.01, 0.02, descending=True), end=10.0)
    assert paths["common"] == [(4, 4), (3, 3), (2, 2), (1, 1)]
    assert (paths["per_group"][0], paths["per_group"][-1]) == ((4, 4), (1, 1))


def test_a_path_ends_with_its_first_point_above_the_end():
    paths = search_paths((1, 2, 3, 4), 2, costs_of(0.1, 0.2), end=0.25)
    assert paths["common"] == [(1, 1), (2, 2)]  # 0.3 nats
    assert paths["per_group"] == [(1, 1), (2, 1), (3, 1), (4, 1)]  # 0.3 nats


def test_thresholds_that_change_no_exit_of_a_group_are_left_out():
    def measure(thresholds):
        rungs = [max(thresholds[0], 3), thresholds[1]]
        return Cost(0.0, tuple(10.0 - rung for rung in rungs))

    path = search_paths((1, 2, 3, 4), 2, measure, end=1.0)["per_group"]
    assert {point[0] for point in path} == {1, 4}
    assert {point[1] for point in path} == {1, 2, 3, 4}


def test_one_group_has_no_path_of_groups():
    assert list(search_paths((1, 2), 1, costs_of(0.1), end=1.0)) == ["common"]


def subject():
    return small.perturbed(SEED)


def held_out(number=9):
    """Sequences of as many documents; every third one has another document from its fourth token on."""
    random = torch.Generator().manual_seed(2)
    inputs, targets = (torch.randint(END, (number, LENGTH), generator=random) for _ in range(2))
    inputs[::3, 3] = END
    return small.held_out(inputs, targets)


def exits(**thresholds):
    criteria = {name: {"thresholds": values} for name, values in thresholds.items()}
    return ExitsConfig(criteria=criteria, max_loops=MAX_LOOPS, dtype="float64", quality_batch_size=4)


def job(checkpoint, **thresholds):
    values = {"search_share": 0.25, "report_share": 0.25, "path_end": 5.0}
    return small.job_config(model=checkpoint.model.config, exits=exits(**thresholds), **values)


def test_a_sequence_is_measured_by_its_own_tokens_against_all_loop_steps():
    checkpoint, text = subject(), held_out(4)
    criterion = make_per_group("fixed", (1, 3))
    found = MeasuredText(TextEvaluator(checkpoint, exits(fixed=[1, 3])), text, END).measure(criterion)
    noise = checkpoint.noise(text.sequences)
    logits, counts = evaluate(checkpoint.model, text.inputs, criterion, MAX_LOOPS, noise)
    full, _ = evaluate(checkpoint.model, text.inputs, make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, noise)
    assert found.tokens.tolist() == [4, 8, 8, 4]
    for row, tokens in enumerate((4, 8, 8, 4)):
        own = slice(0, tokens)
        for losses, values in ((found.ce, logits), (found.full_depth_ce, full)):
            assert losses[row].item() == pytest.approx(cross_entropies(values, text.targets)[row, own].mean().item())
        same = logits[row, own].argmax(-1) == full[row, own].argmax(-1)
        assert found.agreement[row].item() == pytest.approx(same.double().mean().item())
    assert found.evaluations.tolist() == [[1, 3]] * 4
    assert counts.evaluations.shape == (2, 4, LENGTH)
    assert found.cost.evaluations == pytest.approx((1, 3))
    excess = np.average((found.ce - found.full_depth_ce).tolist(), weights=[4, 8, 8, 4])
    assert found.cost.excess == pytest.approx(excess)


def test_all_loop_steps_cost_nothing():
    checkpoint = subject()
    text = MeasuredText(TextEvaluator(checkpoint, exits(fixed=[MAX_LOOPS])), held_out(4), END)
    found = text.measure(make_criterion("fixed", MAX_LOOPS))
    assert torch.equal(found.ce, found.full_depth_ce)
    assert found.agreement.tolist() == [1] * 4
    assert found.cost == (0, (MAX_LOOPS, MAX_LOOPS))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The tables of a criterion with three thresholds, written and read."""
    checkpoint, folder = subject(), tmp_path_factory.mktemp("calibration")
    rows = measure_calibration(checkpoint, held_out(), job(checkpoint, step_norm=[0.1, 1.0, 10.0]), END)
    names = ("calibration_runs", "calibration_paths")
    for name, part in zip(names, rows, strict=True):
        tables.write(name, pd.DataFrame(part).assign(run="trial"), folder / name)
    return tuple(tables.read(name, folder / name) for name in names)


def test_no_document_of_the_search_is_measured_and_the_parts_share_none(measured):
    runs, _ = measured
    by_part = runs.groupby("part")["document"].unique()
    assert set(by_part.index) == {"calibration", "report"}
    assert not set(by_part["calibration"]) & set(by_part["report"])
    searched = set(held_out().documents) - set(runs["document"])
    assert len(searched) == 2
    parts = split_documents(held_out().documents, 0.25, 0.25, 1)
    assert {document for document, part in parts.items() if part == "search"} == searched


def test_the_points_of_a_path_are_measured_under_its_thresholds(measured):
    runs, paths = measured
    checkpoint = subject()
    text = select(held_out(), [row for row, one in enumerate(held_out().documents) if one in set(runs["document"])])
    measured_text = MeasuredText(TextEvaluator(checkpoint, exits(step_norm=[1.0])), text, END)
    for (path, index), rows in runs.groupby(["path", "point"]):
        point = paths[(paths["path"] == path) & (paths["point"] == index)]
        assert point["group"].tolist() == ["2", "3"]
        found = measured_text.measure(make_per_group("step_norm", point["threshold"].tolist()))
        assert rows["sequence"].tolist() == list(text.sequences)
        assert rows["ce"].tolist() == pytest.approx(found.ce.tolist())
        assert rows["evaluations"].tolist() == pytest.approx(found.evaluations.mean(1).tolist())
    assert set(runs["path"]) == {"common", "per_group"}


def runs_table(rises, evaluations=(6, 4, 2), documents=40, agreement=1.0, sequences=1):
    """A path of points whose cross-entropy rises by so much in every document; the first half of them calibrates."""
    rows = [
        {"run": "trial", "criterion": "kl", "path": "common", "point": index}
        | {"part": "calibration" if document < documents // 2 else "report"}
        | {"sequence": sequences * document + number, "document": document, "tokens": 10 + number}
        | {"ce": 4 + rise, "full_depth_ce": 4.0, "agreement": agreement, "evaluations": float(spent)}
        for index, (rise, spent) in enumerate(zip(rises, evaluations, strict=True))
        for document in range(documents)
        for number in range(sequences)
    ]
    return pd.DataFrame(rows, columns=list(tables.columns("calibration_runs")))


def guaranteed(runs, **keys):
    keys = {"nats": [0.05], "disagreement": [], "delta": 0.1} | keys
    return calibrate(runs, GuaranteesConfig(**keys), max_loops=10, seed=0)


def test_the_point_with_fewest_evaluations_that_the_test_accepts_is_chosen():
    (row,) = guaranteed(runs_table((0.0, 0.01, 0.06))).to_dict("records")
    assert (row["point"], row["units"], row["report_documents"]) == (1, 20, 20)
    assert [row[name] for name in ("saved", "saved_low", "saved_high")] == pytest.approx([0.6] * 3)
    assert [row[name] for name in ("loss", "unclipped")] == pytest.approx([0.01] * 2)
    assert row["verdict"] == "holds"
    assert row["p_value"] <= 0.1
    assert guaranteed(runs_table((0.0, 0.01, 0.012), evaluations=(6, 3, 4)))["point"].item() == 1


def test_nothing_is_chosen_behind_a_point_that_the_test_does_not_accept():
    row = guaranteed(runs_table((0.06, 0.0, 0.0))).iloc[0]
    assert (row["point"], row["verdict"], row["saved"], row["loss"]) == (-1, NO_THRESHOLD, 0, 0)
    assert row["p_value"] > 0.1


def test_with_fewer_units_than_the_clip_requires_nothing_can_be_guaranteed():
    """log(0.1) / log(1 - 1/5) = 10.3 units with the bounds, log(10) / log(1 + 1/5) = 12.6 with bets."""
    for test, most in (("hoeffding_bentkus", 10), ("betting", 12)):
        for units, index in ((most, -1), (most + 1, 2)):
            runs = runs_table((0.0,) * 3, documents=2 * units)
            assert guaranteed(runs, test=test)["point"].item() == index


def test_a_loss_that_the_report_has_and_the_calibration_had_not_breaks_the_guarantee():
    runs = runs_table((0.0, 0.0, 0.0))
    runs.loc[runs["part"] == "report", "ce"] += np.where(runs[runs["part"] == "report"]["point"] == 2, 0.2, 0.0)
    row = guaranteed(runs).iloc[0]
    assert (row["point"], row["verdict"]) == (2, "does not hold")
    assert row["loss"] == pytest.approx(0.2)
    large = runs.assign(ce=runs["ce"] + 9 * (runs["ce"] > 4))
    row = guaranteed(large).iloc[0]
    assert (row["loss"], row["unclipped"]) == pytest.approx((0.25, 9.2))  # 5 epsilon, and all of it


@pytest.mark.parametrize("documents", [1, 2])
def test_a_loss_has_an_interval_from_two_documents_of_the_report_on(documents):
    runs = runs_table((0.0,), evaluations=(2,))
    kept = runs[(runs["part"] == "calibration") | (runs["document"] < 20 + documents)]
    row = guaranteed(kept).iloc[0]
    assert row["report_documents"] == documents
    assert np.isfinite([row["saved_low"], row["saved_high"]]).all() == (documents == 2)
    assert row["verdict"] == ("holds" if documents == 2 else "cannot be judged")


def test_disagreement_is_bounded_by_one_whatever_the_clip():
    runs = runs_table((0.0,), evaluations=(2,), agreement=0.9)
    row = guaranteed(runs, nats=[], disagreement=[0.3]).iloc[0]
    assert (row["guarantee"], row["point"]) == ("disagreement", 0)
    assert row["loss"] == pytest.approx(0.1)
    assert row["p_value"] == pytest.approx(guaranteed(runs, nats=[], disagreement=[0.3], clip=50)["p_value"].item())


def test_a_unit_is_a_document_with_all_of_its_sequences_or_a_sequence():
    runs = runs_table((0.0,), evaluations=(2,), documents=4, sequences=3)
    runs["ce"] = 4 + runs["sequence"] % 3 * 0.1
    of_documents, of_sequences = (unit_losses(runs, "ce", unit) for unit in ("document", "sequence"))
    assert of_documents["loss"].tolist() == pytest.approx([(11 * 0.1 + 12 * 0.2) / 33] * 4)
    assert of_sequences["loss"].tolist() == pytest.approx([0, 0.1, 0.2] * 4)
    assert guaranteed(runs, unit="sequence")["units"].item() == 6


def test_the_guarantees_of_a_path_name_its_thresholds():
    calibration = guaranteed(runs_table((0.0, 0.01, 0.06)), nats=[0.05, 1e-4])
    paths = pd.DataFrame(
        {"run": "trial", "criterion": "kl", "path": "common", "point": [0, 1, 1], "group": ["4", "4", "7"]}
    )
    chosen = chosen_thresholds(calibration, paths.assign(threshold=[9.0, 0.1, 0.2]))
    assert list(chosen.columns) == list(tables.columns("calibrated_thresholds"))
    by_epsilon = chosen.groupby("epsilon")["threshold"].apply(list)
    assert by_epsilon[0.05] == [0.1, 0.2]


def test_guarantees_of_measured_tables_fit_their_tables(measured, tmp_path):
    runs, paths = measured
    calibration = calibrate(runs, GuaranteesConfig(), MAX_LOOPS, 0)
    tables.write("calibration", calibration, tmp_path / "calibration")
    assert len(tables.read("calibration", tmp_path / "calibration")) == 2 * 8  # paths, guarantees
    tables.write("calibrated_thresholds", chosen_thresholds(calibration, paths), tmp_path / "thresholds")


def test_the_figure_has_a_line_per_criterion_and_path_and_no_loss_where_nothing_was_guaranteed():
    figure = draw()
    for number, axes in enumerate(figure.axes):
        lines = [container.lines[0] for container in axes.containers]
        assert len(lines) == 6
        expected = [0.02, 0.05, 0.1] if number % 2 else [0.01, 0.02, 0.05, 0.1]
        for line in lines:
            assert list(line.get_xdata()) == pytest.approx(expected, rel=0.1)
        indices = [line.get_xdata()[-1] for line in lines]
        assert len(set(indices)) == 6, "intervals of one epsilon are side by side"
    assert list(figure.axes[0].containers[0].lines[0].get_ydata()) == pytest.approx([0, 0.1, 0.2, 0.3])
    assert list(figure.axes[1].containers[0].lines[0].get_ydata()) == pytest.approx([0.5] * 3)  # over epsilon
    names = ["step norm", "KL", "acceleration", "one threshold for all groups", "one threshold per group"]
    assert legend_texts(figure) == [*names, "guaranteed"]


def test_a_model_with_one_group_and_fixed_loops_has_a_figure():
    assert legend_texts(draw(criteria=("fixed",), paths=("common",)))[:2] == [
        "fixed loops",
        "one threshold for all groups",
    ]
    with pytest.raises(InputError, match="table calibration: found no row"):
        draw(criteria=())


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("thresholds", [2, 3, 5])
def test_the_search_of_thresholds_measures_at_most_what_is_planned(thresholds, groups):
    measured = []

    def measure(point):
        """Lower thresholds of the grid cost more evaluations; nothing is lost, so paths go on to their end."""
        measured.append(point)
        return Cost(0.0, tuple(float(thresholds - threshold) for threshold in point))

    paths = search_paths(range(thresholds), groups, measure, end=1.0)
    search, points = study.calibration_points(thresholds, groups)
    assert len(measured) <= search
    assert len({point for path in paths.values() for point in path}) <= points


def test_every_threshold_is_counted():
    criteria = ({"step_norm": None, "kl": {"thresholds": thresholds}} for thresholds in ([0.1], [0.1, 0.2]))
    one, two = (study.JOBS[0].cost(small.tiny(calibration={"criteria": each})).flops for each in criteria)
    assert 0 < one < two


def test_shares_and_guarantees_that_leave_nothing_are_refused():
    shares = {"search_share": 0.5, "report_share": 0.5}
    configs.assert_refused("calibration.report_share", "0.5", calibration=shares)
    configs.assert_refused("guarantees.nats", "none", guarantees={"nats": [], "disagreement": []})


@pytest.mark.parametrize(("tokens", "sequences"), [(1, 1), (1024, 2), (10**9, 100)])
def test_the_text_has_whole_sequences_and_at_most_those_that_are_held_out(tokens, sequences):
    config = configs.paper(calibration={"tokens": tokens}, data={"held_out_tokens": 100 * 512 + 1})
    assert config.calibration.sequences(config) == sequences
