"""The runs of the sweeps, what their jobs read, and their rules."""

import pandas as pd
import pytest

from tests.rules import config_of, rules
from tests.small import of, project, without_projection
from twoscale import config
from twoscale.base import InputError
from twoscale.model.flops import mean_flops_per_token, parameters
from twoscale.studies.sweeps import study

PRESETS = ("demo", "paper", "tiny", "huginn-like")


def runs_of(sweep, user):
    return {name: run for name, run in config.studies(user).items() if name.startswith(f"{sweep}/")}


def selected_of(preset, **user):
    return config.checked(config.merge(config.preset(preset), user))


# --- adapter initialisations and variants ---------------------------------------------------------


def test_every_start_is_a_run_under_each_first_state_norm_and_seed():
    user = {
        "preset": "demo",
        "seeds": [5],
        "adapter_init": {"shares": [0, 0.25], "state_init": ["noise", "zero"]},
    }
    runs = runs_of("adapter_init", user)
    assert list(runs) == [
        f"adapter_init/{start}-{state}-post_residual{seed}"
        for start in ("0", "0.25", "random")
        for state in ("noise", "zero")
        for seed in ("", "-seed5")
    ]
    model = runs["adapter_init/0.25-zero-post_residual"].model
    assert (model.adapter_init, model.adapter_share, model.state_init) == ("blend", 0.25, "zero")
    assert runs["adapter_init/random-noise-post_residual-seed5"].seed == 5


def test_random_weights_have_the_usual_share_in_the_sweeps_of_a_run_that_has_another():
    runs = config.studies(
        {"preset": "demo", "model": {"adapter_init": "blend", "adapter_share": 0.25}}
    )
    shares = {"adapter_init/random-noise-post_residual": 0.5, "variants/branch-random-noise": 0.5}
    shares |= {"variants/branch-blend-noise": 0.25}
    assert {name: runs[name].model.adapter_share for name in shares} == shares


def test_models_from_before_the_share_keep_their_identity():
    before = config.training_identity(config.checked(config.preset("demo")))["model"]
    assert "adapter_share" not in before
    half, quarter = (
        config.studies({"preset": "demo"})[f"adapter_init/{share}-noise-post_residual"]
        for share in (0.5, 0.25)
    )
    assert config.plain(half.model) == before | {"adapter_init": "blend"}
    assert config.plain(quarter.model)["adapter_share"] == 0.25


def test_variants_differ_from_the_selected_run_only_in_their_keys_and_the_overrides():
    user = {"preset": "tiny", "seed": 5, "variants": {"overrides": {"train": {"batch_size": 2}}}}
    (selected,) = config.runs(user).values()
    variants = list(runs_of("variants", user).values())
    assert len(variants) == 2
    for run in variants:
        assert (run.seed, run.train.batch_size, run.train.iterations) == (5, 2, 10)
        assert (run.data, run.tokenizer) == (selected.data, selected.tokenizer)
        assert run.model.hidden_size == selected.model.hidden_size


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"model": {"adapter_share": 0.25}}, r"model\.adapter_share: found 0\.25"),
        (
            {"model": {"adapter_init": "blend", "adapter_share": 1.5}},
            r"model\.adapter_share: .*1\.5",
        ),
        ({"adapter_init": {"shares": [0.5, 0.5]}}, r"adapter_init\.shares"),
        ({"adapter_init": {"shares": [], "random": False}}, r"adapter_init\.shares: found none"),
        ({"variants": {"sandwich": []}}, r"variants\.sandwich"),
        ({"variants": {"sandwich": ["brnch"]}}, r"variants\.sandwich.*did you mean branch\?"),
        (
            {"variants": {"overrides": {"train": {"lr": 1}}}},
            r"variants/post_residual-random-noise .*train.*lr",
        ),
    ],
)
def test_wrong_values_are_refused(user, words):
    with pytest.raises(InputError, match=words):
        config.studies({"preset": "tiny"} | user)


@pytest.mark.parametrize("one", [{"shares": [0.5], "random": False}, {"shares": []}])
def test_one_kind_of_adapter_initialisation_suffices(one):
    config.studies({"preset": "tiny", "adapter_init": one})


def test_the_runs_of_the_starts_are_labelled_in_the_order_of_their_tables():
    config = {"seeds": [5], "adapter_init": {"shares": [0.25]}}
    expected = [
        f"results/{run}/tables/training.parquet" for run in project(**config).study("adapter_init")
    ]
    assert rules(**config)["compare_adapter_init"].input["training"] == expected
    labels = config_of("compare_adapter_init", **config)["runs"]
    assert [(label["share"], label["seed"]) for label in labels] == [
        (0.25, 1337),
        (0.25, 5),
        (None, 1337),
        (None, 5),
    ]
    assert {(label["state_init"], label["sandwich"]) for label in labels} == {
        ("noise", "post_residual")
    }


# --- baselines ------------------------------------------------------------------------------------


def baselines_of(selected):
    """Name -> config of each baseline."""
    values = config.complete(selected)
    del values["model"]["vocab_size"]
    base, found = (
        config.merge(values, selected.baselines.overrides),
        study.runs(selected)["baselines"],
    )
    return {
        name: config.checked(config.merge(base, overrides)) for name, overrides in found.items()
    }


def flops_of(run):
    return mean_flops_per_token(run.model, run.train).total


@pytest.mark.parametrize("preset", PRESETS)
def test_the_baselines_have_the_nearest_width_and_the_nearest_number_of_layers(preset):
    selected = selected_of(preset, baselines={"overrides": {}})
    found, wanted = baselines_of(selected), parameters(selected.model)
    wide, deep = found["parameters"].model, found["flops"]
    assert (wide.groups, wide.num_layers, wide.hidden_size) == (
        *((), selected.model.num_layers),
        selected.model.hidden_size,
    )
    assert (deep.model.groups, deep.model.mlp_size) == ((), selected.model.mlp_size)
    gaps = abs(parameters(wide) - wanted), abs(flops_of(deep) - flops_of(selected))
    assert gaps[0] < 0.002 * wanted
    for other in (-1, 1):
        changed = deep.model.model_copy(update={"num_layers": deep.model.num_layers + other})
        assert gaps[0] <= abs(
            parameters(wide.model_copy(update={"mlp_size": wide.mlp_width + other})) - wanted
        )
        assert gaps[1] < abs(
            flops_of(deep.model_copy(update={"model": changed})) - flops_of(selected)
        )
    assert flops_of(found["parameters"]) < flops_of(selected)


def test_truncated_backpropagation_and_the_training_of_a_gate_count():
    gated = {"model": {"groups": [[2, 3]], "exit_gate": True}, "train": {"exit_gate": {}}}
    cases = [selected_of("paper"), selected_of("paper", train={"backprop_depth": 2})]
    cases += [selected_of("tiny", **gated | {"train": {}}), selected_of("tiny", **gated)]
    whole, truncated, plain, gate = (baselines_of(run)["flops"].model.num_layers for run in cases)
    assert truncated < whole == 63
    assert plain < gate
    assert {run.train.exit_gate for run in baselines_of(cases[-1]).values()} == {None}


def test_a_model_without_loops_has_no_baselines():
    config = {"model": {"groups": []}}
    assert project(**config).study("baselines") == []
    with pytest.raises(InputError, match=r"^results/baselines\.md: run tiny has no baselines"):
        rules(**config)["compare_baselines"].input["quality"](of())


def test_without_overrides_the_looped_model_is_the_selected_run_under_every_seed():
    mine = project(seeds=[5])
    compared = [(m["model"], m["run"], m["seed"], m["iteration"]) for m in study.compared(mine)]
    assert compared == [
        ("looped", "tiny", 1337, 20),
        ("looped", "tiny-seed5", 5, 20),
        ("parameters", "baselines/parameters", 1337, 20),
        ("parameters", "baselines/parameters-seed5", 5, 20),
        ("flops", "baselines/flops", 1337, 20),
        ("flops", "baselines/flops-seed5", 5, 20),
        ("untrained", "tiny", 1337, 0),
        ("untrained", "tiny-seed5", 5, 0),
    ]
    looped, *others = (
        mine[m["run"]] for m in study.compared(mine) if m["iteration"] and m["seed"] == 1337
    )
    for other in others:  # the same batches
        assert (other.seed, other.train, other.data) == (looped.seed, looped.train, looped.data)
        assert other.model.context_length == looped.model.context_length


def test_with_overrides_all_models_are_trained_under_them():
    train = {"iterations": 10, "lr_decay_iterations": 10}
    mine = project(baselines={"overrides": {"train": train}})
    trained = {m["run"]: m["iteration"] for m in study.compared(mine) if m["iteration"]}
    assert trained == {"baselines/looped": 10, "baselines/parameters": 10, "baselines/flops": 10}
    looped, selected = mine["baselines/looped"], mine["tiny"]
    assert (looped.model, looped.train) == (selected.model, selected.train.model_copy(update=train))


# --- rules ----------------------------------------------------------------------------------------


def test_the_sweeps_are_runs_of_the_same_rules_under_every_seed_and_no_part_of_all(fresh):
    fresh.configure(seeds=[5], adapter_init={"shares": [0, 0.5]})
    assert fresh.plan()["init_model"] == 1
    starts, variants = fresh.plan("adapter_init"), fresh.plan("variants")
    assert variants["init_model"] == 2 * 2
    jobs = {
        "init_model": 1,
        "train_segment_last": 1,
        "extract_trajectories": 2,
        "aggregate_metrics": 1,
    }
    assert {rule: starts[rule] for rule in jobs} == {
        rule: 6 * count for rule, count in jobs.items()
    }
    assert (
        starts["compare_adapter_init"] == starts["plot_adapter_init"] == starts["prepare_text"] == 1
    )
    assert {rule for rule in starts if rule.startswith("plot_")} == {"plot_adapter_init"}
    assert not {"benchmark_exits", "judge_claims"} & set(starts)


@pytest.mark.runs
@pytest.mark.parametrize(
    ("target", "user", "words"),
    [
        ("results/adapter_init.pdf", without_projection(), "has a model without a projection"),
        ("adapter_init", {"model": {"groups": []}}, "has 0 looped groups"),
        ("variants", {"preset": "huginn-0125"}, "has a published model"),
    ],
)
def test_a_run_without_a_sweep_says_why(fresh, target, user, words):
    fresh.configure(**user)
    done = fresh.run("-n", target)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr


@pytest.mark.runs
def test_the_sweeps_are_made_to_their_end(editable):
    start = {"shares": [0.25], "random": False}
    editable.configure(
        adapter_init=start, trajectories={"loops": 30}
    )  # angles settle over k = 10 … 29
    assert editable.plan("baselines")["measure_baseline"] == 4
    targets = ("adapter_init", "baselines", "variants")
    editable.succeed(*targets)
    starts, baselines = (
        pd.read_parquet(editable.root / f"results/tiny/tables/{n}.parquet")
        for n in ("adapter_init", "baselines")
    )
    assert set(starts.loc[starts["measure"] == "late_cosine", "iteration"]) == {0, 10}
    assert baselines["model"].unique().tolist() == ["looped", "parameters", "flops", "untrained"]
    assert "| same parameters |" in (editable.root / "results/baselines.md").read_text()
    seen = [
        pd.read_parquet(editable.root / f"results/{run}/training/iteration_000020.parquet")[
            "tokens_seen"
        ].tolist()
        for run in ("tiny", "baselines/flops")
    ]
    assert seen[0] == seen[1]
    for name in targets:
        assert (editable.root / f"results/{name}.pdf").read_bytes().startswith(b"%PDF")
    assert editable.plan(*targets) == {}
