"""The rules of the study: planned, and run to the end."""

import pytest


@pytest.mark.runs
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


def test_the_variants_are_not_part_of_all(fresh):
    assert fresh.plan()["init_model"] == 1


def test_variants_are_trained_under_every_seed(fresh):
    one = fresh.plan("variants")
    fresh.configure(seeds=[1337, 7])
    assert fresh.plan("variants")["init_model"] == 2 * one["init_model"]


def test_a_published_model_has_no_variants(fresh):
    done = fresh.run("-n", "variants", "--config", "preset=huginn-0125")
    assert done.returncode != 0
    assert "results/variants.pdf: run huginn-0125 has a published model" in done.stdout + done.stderr
