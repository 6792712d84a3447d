"""The runs of the study: each start of the projection under each first state and norm."""

import pytest

from tests.small import without_projection
from tests.unit.test_release import config_of, refused, release, runs
from twoscale import config
from twoscale.base import InputError


def starts_of(user):
    return {name: run for name, run in config.studies(user).items() if name.startswith("adapter_init/")}


def test_every_start_is_a_run_under_each_first_state_and_norm():
    runs = starts_of({"preset": "demo", "adapter_init": {"shares": [0, 0.25], "state_init": ["noise", "zero"]}})
    assert list(runs) == [
        f"adapter_init/{start}-{state}-post_residual"
        for start in ("0", "0.25", "random")
        for state in ("noise", "zero")
    ]
    model = runs["adapter_init/0.25-zero-post_residual"].model
    assert (model.adapter_init, model.adapter_share, model.state_init) == ("blend", 0.25, "zero")
    assert runs["adapter_init/random-noise-post_residual"].model.adapter_init == "random"


def test_every_start_is_trained_under_every_seed():
    runs = starts_of({"preset": "tiny", "seeds": [5], "adapter_init": {"shares": [1], "random": False}})
    assert {name: run.seed for name, run in runs.items()} == {
        "adapter_init/1-noise-post_residual": 1337,
        "adapter_init/1-noise-post_residual-seed5": 5,
    }


def test_random_weights_are_beside_the_shares_of_a_run_that_has_one():
    user = {"preset": "demo", "model": {"adapter_init": "blend", "adapter_share": 0.25}}
    runs = config.studies(user)
    assert runs["adapter_init/random-noise-post_residual"].model.adapter_share == 0.5


def test_a_model_without_a_projection_has_no_starts():
    assert starts_of({"preset": "tiny"} | without_projection()) == {}


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ({"model": {"adapter_share": 0.25}}, r"model\.adapter_share: found 0\.25, expected 0\.5 unless .* not random"),
        ({"model": {"adapter_init": "blend", "adapter_share": 1.5}}, r"model\.adapter_share: .*1\.5"),
        ({"adapter_init": {"shares": [0.5, 0.5]}}, r"adapter_init\.shares: .*distinct"),
        ({"adapter_init": {"shares": [], "random": False}}, r"adapter_init\.shares: found none, expected at least one"),
    ],
)
def test_a_start_that_does_not_exist_is_refused(user, sentence):
    with pytest.raises(InputError, match=sentence):
        config.studies({"preset": "tiny"} | user)


def test_models_from_before_the_share_keep_their_identity():
    before = config.training_identity(config.checked(config.preset("demo")))["model"]
    assert "adapter_share" not in before
    half = config.studies({"preset": "demo"})["adapter_init/0.5-noise-post_residual"]
    assert config.plain(half.model) == before | {"adapter_init": "blend"}
    quarter = config.studies({"preset": "demo"})["adapter_init/0.25-noise-post_residual"]
    assert config.plain(quarter.model)["adapter_share"] == 0.25


@pytest.mark.parametrize(("shares", "seeds"), [(3000, 1), (50, 50)])
def test_a_release_of_very_many_runs_is_refused_before_they_are_planned(shares, seeds, tmp_path):
    adapter_init = config_of()["adapter_init"] | {"shares": [i / shares for i in range(shares)]}
    folder = release(tmp_path, config=config_of(seeds=list(range(seeds)), adapter_init=adapter_init))
    refused(lambda: runs(folder), r"manifest\.json: found \d+ combinations of seeds .*, expected at most 2000")
