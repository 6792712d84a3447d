"""The baselines: sizes and costs of the models, their runs, and the comparison of tables with known content."""

import numpy as np
import pandas as pd
import pytest

from tests.figures import legend_texts
from tests.studies.baselines.samples import DOCUMENTS, THREE, compared, draw
from twoscale import config, tables
from twoscale.base import InputError
from twoscale.claims import bootstrap
from twoscale.figures import style
from twoscale.model.flops import parameters
from twoscale.model.registry import build
from twoscale.studies.baselines import compare as analysis
from twoscale.studies.baselines import figure as figure_module
from twoscale.studies.baselines import study
from twoscale.studies.baselines.runs import BASELINES
from twoscale.studies.baselines.runs import runs as baselines
from twoscale.training.plan import mean_flops_per_token
from twoscale.workflow.runs import Runs

PRESETS = ("demo", "paper", "tiny", "huginn-like")


def run_of(preset, **user):
    return config.checked(config.merge(config.preset(preset), user))


def baselines_of(selected):
    """Name -> config of each baseline."""
    values = config.complete(selected)
    del values["model"]["vocab_size"]
    base = config.merge(values, selected.baselines.overrides)
    return {name: config.checked(config.merge(base, overrides)) for name, overrides in baselines(selected).items()}


def flops_of(run):
    return mean_flops_per_token(run.model, run.train).total


@pytest.mark.parametrize("preset", PRESETS)
def test_the_baseline_of_the_same_parameters_has_as_many_layers_and_the_nearest_width(preset):
    selected = run_of(preset, baselines={"overrides": {}})
    found = baselines_of(selected)["parameters"].model
    wanted, layers = parameters(selected.model), selected.model.num_layers
    assert (found.groups, found.num_layers, found.hidden_size) == ((), layers, selected.model.hidden_size)
    gap = abs(parameters(found) - wanted)
    for other in (-1, 1):
        assert gap <= abs(parameters(found.model_copy(update={"mlp_size": found.mlp_width + other})) - wanted)
    assert gap < 0.002 * wanted
    assert flops_of(baselines_of(selected)["parameters"]) < flops_of(selected)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_baseline_of_the_same_flops_has_the_nearest_number_of_layers(preset):
    selected = run_of(preset, baselines={"overrides": {}})
    found = baselines_of(selected)["flops"]
    assert (found.model.groups, found.model.mlp_size) == ((), selected.model.mlp_size)
    gap = abs(flops_of(found) - flops_of(selected))
    for other in (-1, 1):
        layers = found.model.num_layers + other
        changed = found.model_copy(update={"model": found.model.model_copy(update={"num_layers": layers})})
        assert gap < abs(flops_of(changed) - flops_of(selected))


def test_the_demo_has_exactly_the_same_parameters_and_a_thousandth_more_flops():
    selected = run_of("demo")
    found = baselines_of(selected)
    assert parameters(found["parameters"].model) == parameters(selected.model)
    assert sum(p.numel() for p in build(found["parameters"].model).parameters()) == parameters(selected.model)
    assert flops_of(found["flops"]) / flops_of(selected) - 1 == pytest.approx(0.0012, abs=1e-4)


def test_truncated_backpropagation_counts():
    whole, truncated = run_of("paper"), run_of("paper", train={"backprop_depth": 2})
    layers = [baselines_of(run)["flops"].model.num_layers for run in (whole, truncated)]
    assert layers[1] < layers[0] == 63


def test_a_baseline_of_a_model_with_a_norm_at_every_loop_step_reads_its_states_with_a_norm():
    model = {"num_layers": 4, "groups": [[3, 4]], "loop_norm": True, "injection": "none", "state_init": "input"}
    found = baselines_of(run_of("tiny", model=model))
    assert not any(run.model.loop_norm for run in found.values())


def test_a_model_of_infinite_flops_is_refused_in_one_sentence():
    with pytest.raises(
        InputError, match=r"^config key model: found infinite FLOPs per token, expected a smaller model"
    ):
        baselines(run_of("tiny", model={"mean_loops": 1e308}))


def test_the_baselines_of_a_model_with_a_trained_exit_gate_have_the_cost_of_its_training_and_no_gate_to_train():
    gated = {"model": {"groups": [[2, 3]], "exit_gate": True}, "train": {"exit_gate": {}}}
    selected = run_of("tiny", **gated)
    plain = run_of("tiny", **gated | {"train": {}})
    assert {made.train.exit_gate for made in baselines_of(selected).values()} == {None}
    with_gate, without = (baselines_of(run)["flops"].model.num_layers for run in (selected, plain))
    assert with_gate > without


def test_a_model_without_loops_has_no_baselines():
    assert baselines(run_of("tiny", model={"groups": []})) == {}


def runs(tmp_path, **user):
    return Runs({"preset": "tiny"} | user, tmp_path)


def test_without_overrides_the_looped_model_is_the_selected_run_under_every_seed(tmp_path):
    mine = runs(tmp_path, seeds=[5])
    assert mine.study("baselines") == [f"baselines/{name}{end}" for name in BASELINES for end in ("", "-seed5")]
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


def test_with_overrides_all_models_are_trained_under_them(tmp_path):
    train = {"iterations": 10, "lr_decay_iterations": 10}
    mine = runs(tmp_path, baselines={"overrides": {"train": train}})
    trained = {m["run"]: m["iteration"] for m in study.compared(mine) if m["iteration"]}
    assert trained == {"baselines/looped": 10, "baselines/parameters": 10, "baselines/flops": 10}
    looped, selected = mine["baselines/looped"], mine["tiny"]
    assert looped.model == selected.model
    assert looped.train == selected.train.model_copy(update=train)


def test_models_are_compared_after_their_last_iteration(tmp_path):
    mine = runs(tmp_path, run="mine", train={"checkpoint_every": 5})
    trained = [model for model in study.compared(mine) if model["model"] != "untrained"]
    assert {model["iteration"] for model in trained} == {mine.config.train.iterations}
    assert len(mine.paths.iterations("mine")) > 2


def test_baselines_are_trained_on_the_batches_of_the_looped_model(tmp_path):
    mine = runs(tmp_path)
    looped, *others = (mine[m["run"]] for m in study.compared(mine) if m["iteration"])
    for other in others:
        assert (other.seed, other.train, other.data) == (looped.seed, looped.train, looped.data)
        assert other.model.context_length == looped.model.context_length
    assert {mine.paths.data_run(m["run"]) for m in study.compared(mine)} == {"tiny"}


def test_files_of_a_run_without_baselines_are_refused_in_one_sentence(tmp_path):
    mine = runs(tmp_path, model={"groups": []})
    with pytest.raises(InputError, match=r"^results/baselines\.md: run tiny has no baselines, expected a looped model"):
        next(job for job in study.JOBS if job.name == "compare_baselines").inputs(mine)["quality"]({})
    figure = next(figure for figure in mine.figures if figure.name == "baselines")
    assert "has 0 looped groups" in figure.problem(mine.config)


def test_differences_are_between_models_of_the_same_seed_on_the_same_documents(tmp_path):
    table = compared(tmp_path, THREE)
    tables.write("baselines", table, tmp_path / "baselines.parquet")
    each = table.dropna(subset="seed").set_index(["model", "seed"])
    weights = np.r_[2.0, np.ones(DOCUMENTS - 1)] / (DOCUMENTS + 1)
    alternating = 0.05 * weights @ (-1.0) ** np.arange(DOCUMENTS)
    assert each.loc[("parameters", 2), "difference"] == pytest.approx(0.33 + alternating)
    assert each.loc[("flops", 3), "difference"] == pytest.approx(-0.24 + alternating)
    assert each.loc[("flops", 3), "ce"] == pytest.approx(4 + weights @ np.arange(DOCUMENTS) + 1 - 0.24 + alternating)
    row = each.loc[("parameters", 2)]
    # the text varies by nats between documents, the difference by hundredths
    assert row["difference_high"] - row["difference_low"] < 0.2 < 2 < row["ce_high"] - row["ce_low"]
    assert (each["seeds"] == 1).all()
    assert each["seeds_low"].isna().all()


def test_the_mean_over_seeds_has_an_interval_over_seeds_one_over_documents_and_both(tmp_path):
    table = compared(tmp_path, THREE)
    mean = table[table["seed"].isna()].set_index("model").loc["parameters"]
    seeds = table.dropna(subset="seed").query("model == 'parameters'")["difference"]
    assert mean["difference"] == pytest.approx(seeds.mean())
    assert (mean["seeds_low"], mean["seeds_high"]) == pytest.approx(bootstrap.t_interval(seeds.to_numpy()))
    for end in ("low", "high"):
        parts = [mean[f"{part}_{end}"] - mean["difference"] for part in ("documents", "seeds")]
        assert abs(mean[f"difference_{end}"] - mean["difference"]) == pytest.approx(np.hypot(*parts))
    assert mean["seeds"] == 3
    looped = table[table["seed"].isna()].set_index("model").loc["looped"]
    assert looped[["difference", "difference_low", "difference_high"]].tolist() == [0, 0, 0]


def test_one_seed_has_no_interval_over_seeds(tmp_path):
    table = compared(tmp_path, {key: offset for key, offset in THREE.items() if key[1] == 1})
    mean = table[table["seed"].isna()].set_index("model").loc["flops"]
    assert np.isnan(mean["seeds_low"])
    assert (mean["difference_low"], mean["difference_high"]) == pytest.approx(
        (mean["documents_low"], mean["documents_high"])
    )


VALUES = {"run": "trial", "text": "a_text", "loops": 3, "mean_loops": "4", "iterations": 20, "training_tokens": 2560}


def test_the_page_has_sizes_differences_and_every_seed(tmp_path):
    page = analysis.page(compared(tmp_path, THREE), VALUES)
    assert "under the seeds 1, 2, 3" in page
    assert "- **Same training FLOPs**:" in page
    assert "| same training FLOPs | 4 | 1,000 | +0.00 % | 1e+06 | +0.00 % |" in page
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Mean over seeds",
        *(f"## Seed {seed}" for seed in (1, 2, 3)),
    ]
    assert page.count("| same parameters |") == 5
    assert "\\_text" in page
    one = analysis.page(compared(tmp_path, {key: value for key, value in THREE.items() if key[1] == 1}), VALUES)
    assert "under the seed 1." in one


def test_the_figure_has_means_and_seeds_of_every_trained_model(tmp_path):
    figure = draw(tmp_path)
    ce, difference = figure.axes
    assert [len(axes.get_lines()) for axes in figure.axes] == [3 * 4, 2 * 4 + 1]
    table = compared(tmp_path, THREE)
    means = table[table["seed"].isna()].set_index("model")
    assert difference.get_lines()[0].get_ydata() == pytest.approx([means.loc["parameters", "difference"]])
    assert ce.get_lines()[0].get_ydata() == pytest.approx([means.loc["looped", "ce"]])
    assert legend_texts(figure) == [
        "mean over seeds",
        "one seed",
        f"untrained: {means.loc['untrained', 'ce']:.2f} nats/token",
    ]
    single = draw(tmp_path, {key: offset for key, offset in THREE.items() if key[1] == 1})
    assert legend_texts(single)[0] == "one seed"
    with pytest.raises(InputError, match="table baselines: found no row"):
        figure_module.draw(table[:0], context=style.FigureContext("trial", "text", 3))


def test_the_report_says_what_the_loops_buy_over_all_seeds():
    means = {"model": ["looped", "flops", "flops"], "seed": [None, None, 7], "difference": [0.0, -0.25, 9.0]}
    ends = {"difference_low": [0.0, -0.5, 8.0], "difference_high": [0.0, 0.125, 10.0]}
    found = analysis.sentence(pd.DataFrame(means | ends))
    assert found.endswith("per token: -0.250 [-0.500, +0.125] with the same training FLOPs.")
