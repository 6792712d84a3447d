"""The runs of the study: a combination of choices each, under the overrides of the study and under every seed."""

import pytest

from twoscale import config
from twoscale.base import InputError
from twoscale.studies.variants.runs import KEYS


def variants_of(user):
    return {name: run for name, run in config.studies(user).items() if name.startswith("variants/")}


def test_every_combination_is_a_run_named_after_it():
    runs = variants_of({"preset": "demo"})
    assert len(runs) == 8
    model = runs["variants/branch-blend-input"].model
    assert (model.sandwich, model.adapter_init, model.state_init) == ("branch", "blend", "input")
    combinations = {tuple(getattr(run.model, key) for key in KEYS) for run in runs.values()}
    assert len(combinations) == 8


def test_variants_differ_from_the_selected_run_only_in_their_keys_and_the_overrides():
    user = {"preset": "tiny", "seed": 5, "variants": {"overrides": {"train": {"batch_size": 2}}}}
    (selected,) = config.runs(user).values()
    variants = list(variants_of(user).values())
    assert len(variants) == 2
    for run in variants:
        assert (run.seed, run.train.batch_size, run.train.iterations) == (5, 2, 10)
        assert (run.data, run.tokenizer) == (selected.data, selected.tokenizer)
        assert run.model.hidden_size == selected.model.hidden_size


def test_a_wrong_override_names_the_run_and_the_key():
    user = {"preset": "tiny", "variants": {"overrides": {"train": {"lr": 1}}}}
    with pytest.raises(InputError, match=r"variants/post_residual-random-noise .*train: unknown key lr"):
        config.studies(user)


@pytest.mark.parametrize("value", [[], ["none"], ["branch", "branch"]])
def test_a_variant_that_does_not_exist_is_refused(value):
    with pytest.raises(InputError, match=r"config key variants\.sandwich: .*list of distinct values out of"):
        config.studies({"preset": "tiny", "variants": {"sandwich": value}})


def test_a_mistyped_choice_is_answered_with_the_nearest_one():
    with pytest.raises(InputError, match=r"\(did you mean branch\?\)\.$"):
        config.runs({"preset": "tiny", "variants": {"sandwich": ["brnch"]}})


def test_random_weights_have_the_usual_share_in_the_variants_of_a_run_that_has_another():
    runs = variants_of({"preset": "demo", "model": {"adapter_init": "blend", "adapter_share": 0.25}})
    assert runs["variants/branch-random-noise"].model.adapter_share == 0.5
    assert runs["variants/branch-blend-noise"].model.adapter_share == 0.25


def test_every_run_of_a_study_is_trained_under_every_seed():
    found = config.studies({"preset": "tiny", "seeds": [1337, 5]})
    assert {name: run.seed for name, run in found.items() if "/post_residual-random" in name} == {
        "variants/post_residual-random-noise": 1337,
        "variants/post_residual-random-noise-seed5": 5,
    }
