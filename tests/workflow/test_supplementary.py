"""Path types, path independence and variants: planned and made by the rules of every run."""

import pandas as pd
import pytest

pytestmark = pytest.mark.runs


def test_path_types_and_path_independence_are_made_from_the_checkpoints_alone(editable):
    figures = ["results/path_types.pdf", "results/path_independence.pdf"]
    planned = editable.plan(*figures)
    assert planned == {
        "measure_path_independence": 3,
        "aggregate_paths": 1,
        "aggregate_independence": 1,
        "plot_path_types": 1,
        "plot_path_independence": 1,
    }
    editable.succeed(*figures)
    path_types = pd.read_parquet(editable.root / "results/tiny/tables/path_types.parquet")
    shares = path_types.groupby(["iteration", "group"])["share"].sum()
    assert shares.index.tolist() == [(iteration, group) for iteration in (0, 10, 20) for group in ("2", "3")]
    assert shares.tolist() == pytest.approx([1.0] * 6)
    for figure in figures:
        assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(*figures) == {}


def test_the_lens_is_measured_at_the_last_checkpoint_and_again_only_for_its_own_keys(editable):
    figure = "results/lens.pdf"
    assert editable.plan(figure) == {"measure_lens": 1, "plot_lens": 1}
    editable.succeed(figure)
    lens = pd.read_parquet(editable.root / "results/tiny/tables/lens.parquet")
    assert lens["iteration"].unique().tolist() == [20]
    assert lens["k"].unique().tolist() == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(figure) == {}
    editable.configure(lens={"max_multiple": 2})
    assert editable.plan(figure) == {"measure_lens": 1, "plot_lens": 1}
    assert "measure_lens" not in editable.plan("results/scaling.pdf")


def test_the_arena_has_every_criterion_of_the_dense_grids(editable):
    page, figure = "results/arena.md", "results/arena.pdf"
    beside_oracles = {"measure_exit_regret": 1, "compare_exits": 1}
    measured = {"measure_exit_quality": 5, "join_exit_quality": 1} | beside_oracles
    assert editable.plan(page) == measured
    assert editable.plan(figure) == measured | {"plot_arena": 1}
    editable.configure(pareto={"criteria": {"confidence": {"thresholds": [0.01, 0.1]}}})
    editable.succeed(page, figure)
    arena = pd.read_parquet(editable.root / "results/tiny/tables/arena.parquet")
    controlled = arena[arena["reference"] != "oracle"]
    assert set(controlled["criterion"]) == {"step_norm", "kl", "acceleration", "argmax_stability", "confidence"}
    assert set(controlled["reference"]) == {"random", "fixed"}
    assert set(arena.loc[arena["reference"] == "oracle", "threshold"]) >= {0.01, 0.1, *range(1, 7)}
    assert "| confidence |" in (editable.root / page).read_text()
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(page, figure) == {}
    editable.configure(pareto={"criteria": {"confidence": {"thresholds": [0.01, 0.1]}}}, oracle={"tolerance": 0.5})
    assert editable.plan(page) == beside_oracles


def test_another_promise_chooses_thresholds_without_a_measurement(editable):
    figure, aggregated = "results/calibration.pdf", {"aggregate_calibration": 1, "plot_calibration": 1}
    assert editable.plan(figure) == {"measure_calibration": 2} | aggregated
    editable.succeed(figure)
    calibration = pd.read_parquet(editable.root / "results/tiny/tables/calibration.parquet")
    assert set(calibration["criterion"]) == {"step_norm", "kl"}
    assert set(calibration["path"]) == {"common", "per_group"}
    assert (editable.root / figure).read_bytes().startswith(b"%PDF")
    assert editable.plan(figure) == {}
    editable.configure(promises={"nats": [0.3]})
    assert editable.plan(figure) == aggregated
    editable.configure(calibration={"tokens": 512})
    assert editable.plan(figure)["measure_calibration"] == 2


def test_criteria_of_path_types_repeat_the_extraction_and_no_training(editable):
    editable.configure(path_types={"straightness": 0.6})
    assert "train_segment" not in editable.plan("results/path_types.pdf")
    assert editable.plan("results/path_types.pdf")["extract_trajectories"] == 3


def test_the_variants_are_runs_of_the_same_rules_on_the_text_of_the_selected_run(editable):
    planned = editable.plan("variants")
    assert planned == {
        "init_model": 2,
        "train_segment_last": 2,
        "extract_trajectories": 4,
        "aggregate_metrics": 2,
        "aggregate_training": 2,
        "plot_variants": 1,
    }
    editable.succeed("variants")
    assert (editable.root / "results/variants.pdf").read_bytes().startswith(b"%PDF")
    assert editable.plan("variants") == {}
    assert editable.plan() == {}


def test_the_controls_are_trained_beside_the_selected_run_and_compared_with_it(editable):
    planned = editable.plan("controls")
    assert planned == {
        "init_model": 2,
        "train_segment": 2,
        "train_segment_last": 2,
        "measure_control": 4,
        "compare_controls": 1,
        "plot_controls": 1,
    }
    editable.succeed("controls")
    table = pd.read_parquet(editable.root / "results/tiny/tables/controls.parquet")
    assert table["model"].unique().tolist() == ["looped", "parameters", "flops", "untrained"]
    assert table["iteration"].unique().tolist() == [20, 0]
    looped = pd.read_parquet(editable.root / "results/tiny/training/iteration_000020.parquet")
    control = pd.read_parquet(editable.root / "results/controls/flops/training/iteration_000020.parquet")
    assert control["tokens_seen"].tolist() == looped["tokens_seen"].tolist()
    assert "| same parameters |" in (editable.root / "results/controls.md").read_text()
    assert (editable.root / "results/controls.pdf").read_bytes().startswith(b"%PDF")
    assert editable.plan("controls") == {}
    assert editable.plan() == {}


def test_the_variants_are_not_part_of_all(fresh):
    assert fresh.plan()["init_model"] == 1
