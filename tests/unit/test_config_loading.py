"""Loading: layers, presets, runs, slices, and what the messages name."""

import copy
import json
import sys
from types import ModuleType

import pytest
import yaml

from twoscale import config
from twoscale.base import InputError


def test_merge_goes_into_mappings_and_replaces_every_other_value():
    base = {
        "seed": 1,
        "model": {"hidden_size": 8, "groups": [[2], [3]]},
        "data": {"path": None, "subset": "a"},
    }
    overlay = {"model": {"groups": [[4]]}, "data": {"path": "x.parquet", "subset": None}}
    before = copy.deepcopy((base, overlay))
    assert config.merge(base, overlay) == {
        "seed": 1,
        "model": {"hidden_size": 8, "groups": [[4]]},
        "data": {"path": "x.parquet", "subset": None},
    }
    assert (base, overlay) == before


def test_an_exit_criterion_set_to_null_is_removed_and_a_later_layer_may_add_it_again():
    user = {"exits": {"criteria": {"kl": None, "step_norm": {"thresholds": [0.1]}}}}
    again = {"exits": {"criteria": {"kl": {"thresholds": [1.0]}}}}
    runs = config.runs({"preset": "tiny"} | user | {"runs": {"again": again}})
    names = ["fixed", "step_norm", "kl", "acceleration"]
    assert list(runs["again"].exits.criteria) == names
    assert list(runs["tiny"].exits.criteria) == [name for name in names if name != "kl"]
    assert runs["tiny"].exits.criteria["step_norm"].thresholds == (0.1,)


def test_the_user_wins_over_the_preset_and_the_preset_over_the_paper():
    model = config.runs({"preset": "tiny", "model": {"hidden_size": 24}})["tiny"].model
    assert (model.hidden_size, model.num_layers, model.loops_sigma) == (24, 4, 0.5)


def test_runs_take_their_overrides_over_the_selected_run():
    user = {
        "preset": "tiny",
        "run": "base",
        "seed": 5,
        "runs": {"branch": {"model": {"sandwich": "branch"}}, "x": None},
    }
    runs = config.runs(user)
    assert list(runs) == ["base", "branch", "x"]
    assert (runs["base"].model.sandwich, runs["branch"].model.sandwich) == (
        "post_residual",
        "branch",
    )
    assert runs["branch"].seed == 5
    assert runs["x"] == runs["base"]


WITH_OVERRIDES = [
    name for name, section in config.SECTIONS.items() if "overrides" in section.model_fields
]
# What a user wrote, and how the sentence on it begins: the key and what was found.
WRONG = [
    ({"modle": {}}, "(top level): unknown key modle, expected one of seed, seeds, compute, "),
    (
        {"learning_rate": "1e-3"},
        "(top level): unknown key learning_rate, expected it in a section, as in train: ",
    ),
    (
        {"train": {"lr": 1, "bs": 2, "iterations": -1}},
        "train: unknown key bs, lr, expected one of iterations, ",
    ),
    ({"model": {"heds": 2}}, "model: unknown key heds, expected one of architecture, num_layers, "),
    (
        {"model": {"vocab_size": 9}},
        "model: unknown key vocab_size, which follows from the section tokenizer",
    ),
    (
        {"model": {"rotary_scaling": {"facter": 8}}},
        "model.rotary_scaling: unknown key facter, expected one of factor",
    ),
    ({"model": {"hidden_size": "wide"}}, "model.hidden_size: found 'wide', expected a number"),
    ({"model": {"hidden_size": 1.5}}, "model.hidden_size: found 1.5, expected a valid integer"),
    ({"model": 5}, "model: found 5, expected a section of keys"),
    ({"train": {"learning_rate": float("inf")}}, "train.learning_rate: found inf"),
    (
        {"train": {"compile": "yes"}},
        "train.compile: found 'yes', expected a valid boolean or 'auto'",
    ),
    ({"compute": {"device": "gpu"}}, "compute.device: found 'gpu', expected 'cpu' or 'cuda'"),
    (
        {"data": {"path": "mine.txt"}},
        "data.path: found mine.txt, expected nothing, because data.source is 'pyth",
    ),
    ({"seeds": [5, 5]}, "seeds: found [5, 5], expected distinct values"),
    ({"model": {"groups": [4, 5, 7]}}, "model.groups.0: found 4, expected a valid list"),
    (
        {"scaling": {"loops": []}},
        "scaling.loops: found [], expected a list with at least 1 item",
    ),
    ({"exits": {"criteria": {"kl": 1}}}, "exits.criteria.kl: found 1, expected a section of keys"),
    (
        {"model": {"architecture": "../x"}},
        "model.architecture: found '../x', expected transformer or ",
    ),
    ({"preset": "huge"}, "preset: found 'huge', expected one of demo, "),
    ({"preset": None}, "preset: found nothing (null), expected a name"),
    ({"run": "a b"}, "run: found 'a b'"),
    ({"run": ["a"]}, "run: found ['a'], expected a name"),
    ({"run": "None"}, "run: found 'None', a reserved name, expected another name"),
    ({"run": "a" * 101}, "run: found 'aaa"),
    ({"seed": 2**63}, "seed: found 9223372036854775808, expected less than 9223372036854775808"),
    (
        {"exits": {"criteria": {}}},
        "exits.criteria: found {}, expected criteria to add or to change; null removes one",
    ),
    ({"run": "models"}, "run: found 'models', a reserved name, expected another"),
    *(({"run": name}, f"run: found {name!r}, a reserved name") for name in WITH_OVERRIDES),
    ({"runs": {"tiny": {}}}, "runs: found 'tiny', the name of the selected run"),
    (
        {"seeds": [5], "runs": {"tiny-seed5": {}}},
        "runs: found 'tiny-seed5', the name of the selected run",
    ),
    ({"runs": {"x": 3}}, "runs.x: found 3, expected a section of keys"),
    (
        {"figures": {"fig1_tokens": 99}},
        "figures.fig1_tokens: found 99, expected at most model.context_length = ",
    ),
]


@pytest.mark.parametrize(("user", "beginning"), WRONG)
def test_the_first_wrong_key_or_value_is_named_in_one_sentence(user, beginning):
    with pytest.raises(InputError) as refusal:
        config.runs({"preset": "tiny"} | user)
    assert str(refusal.value).startswith(f"config key {beginning}")
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["..", "/tmp/x", "a;touch", "$(touch)", "a\n", "-rf", "a b", "", "\u202ea", "{a}"]
)
def test_a_name_that_is_a_path_a_command_or_an_option_names_no_run(name):
    with pytest.raises(InputError, match="config key run: found"):
        config.runs({"run": name})
    with pytest.raises(InputError, match="config key runs"):
        config.runs({"runs": {name: {}}})


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        (
            {"runs": {"a": {"train": {"iterations": "foo"}}}},
            "config key train.iterations: found 'foo', expected a number",
        ),
        (
            {"runs": {"a": {"exits": {"max_loops": 2}}}},
            "config key exits.criteria.fixed.thresholds: found 6, expected",
        ),
        (
            {"runs": {"a": {"preset": "demo"}}},
            "config key (top level): unknown key preset, expected one of seed, ",
        ),
    ],
)
def test_a_wrong_value_in_a_further_run_names_the_run_and_the_key(user, sentence):
    with pytest.raises(InputError) as refusal:
        config.runs({"preset": "tiny"} | user)
    assert str(refusal.value).startswith(f"run a (runs.a): {sentence}")


@pytest.mark.parametrize(
    ("user", "suggestion"),
    [
        ({"perset": "demo"}, "preset"),
        ({"train": {"learning_rte": 2}}, "learning_rate"),
        ({"model": {"rotary_scaling": {"facter": 8}}}, "factor"),
        ({"preset": "dmo"}, "demo"),
        ({"exits": {"criteria": {"accelration": {"thresholds": [1]}}}}, "acceleration"),
        ({"model": {"sandwich": "brnch"}}, "branch"),
        ({"runs": {"a": {"trian": {}}}}, "train"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest_one(user, suggestion):
    with pytest.raises(InputError, match=rf"\(did you mean {suggestion}\?\)\.$"):
        config.runs({"preset": "tiny"} | user)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "preset: tiny\ntrain:\n  iterations: [1,\n  x: 3\n",
            ", line 5: cannot be read as YAML (expected ',' or ']'",
        ),
        (
            "seed: 1\ntrain:\n  {beta1: 0.9,\n   beta1: 0.8}\n",
            ", line 4: cannot be read as YAML (key beta1 is repeated",
        ),
        ("seed: " + "9" * 10_000, ": cannot be read as YAML (Exceeds the limit"),
        ("seed: " + "[" * 3000, ": cannot be read as YAML (maximum recursion depth exceeded"),
        ("- preset\n", ": found ['preset'], expected keys and their values at the top level."),
        (None, ": cannot be read as YAML (["),
    ],
    ids=["bracket", "repeated", "digits", "nested", "list", "missing"],
)
def test_a_broken_file_is_one_sentence_with_its_line(tmp_path, text, sentence):
    path = tmp_path / "my.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as refusal:
        config.read_yaml(path)
    assert str(refusal.value).startswith(f"{path}{sentence}")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("seed", ": found 'seed', expected KEY=VALUE"),
        ("seed=[1", r" seed, line 1: cannot be read as YAML \(expected ',' or '\]'"),
        ("seed=" + "[" * 3000, r" seed: cannot be read as YAML \(maximum recursion"),
        ("seed=" + "9" * 10_000, r" seed: cannot be read as YAML \(Exceeds the limit"),
    ],
    ids=["no value", "bracket", "nested", "digits"],
)
def test_an_entry_of_the_command_line_that_cannot_be_read_is_refused(entry, sentence):
    with pytest.raises(InputError, match=f"^option --config{sentence}"):
        config.user_config([], ["preset=tiny", entry])


def test_entries_of_the_command_line_override_files_and_the_preset_names_the_run():
    user = config.user_config([], ["seed=3"], preset="tiny")
    assert user.items() >= {"preset": "tiny", "run": "tiny", "seed": 3}.items()


def test_a_path_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    data = config.runs({"preset": "tiny", "data": {"source": "txt", "path": "~/texts"}})[
        "tiny"
    ].data
    assert data.path == "/home/me/texts"


def with_strings(values):
    """Every number as a string in e-notation, as YAML 1.1 reads 6e-4."""
    if isinstance(values, dict):
        return {key: with_strings(value) for key, value in values.items()}
    if isinstance(values, list):
        return [with_strings(value) for value in values]
    if isinstance(values, bool) or not isinstance(values, int | float):
        return values
    return repr(values) if "e" in repr(values) else f"{values!r}e0"


@pytest.mark.parametrize("name", ["paper", "tiny", "huginn-0125"])
def test_every_number_of_a_preset_may_be_a_string_in_e_notation(name):
    preset = config.preset(name)
    numbers = with_strings(
        {key: value for key, value in preset.items() if key not in WITH_OVERRIDES}
    )
    assert config.checked(preset | yaml.safe_load(yaml.safe_dump(numbers))) == config.checked(
        preset
    )


@pytest.mark.parametrize("word", ["many", "0x10", "nan", "1e", "", "1e-3 loops"])
def test_a_word_is_no_number(word):
    with pytest.raises(InputError, match=r"config key train\.learning_rate: found "):
        config.runs({"preset": "tiny", "train": {"learning_rate": word}})
    with pytest.raises(InputError, match=r"config key scaling\.loops\.1: found "):
        config.runs({"preset": "tiny", "scaling": {"loops": [1, word]}})


@pytest.mark.parametrize(("word", "value"), [("true", True), ("False", False)])
def test_a_flag_may_be_a_string_as_nested_values_of_the_command_line_are(word, value):
    (run,) = config.runs({"preset": "tiny", "train": {"compile": word, "prefetch": word}}).values()
    assert (run.train.compile, run.train.prefetch) == (value, value)


def test_null_may_be_a_string_as_nested_values_of_the_command_line_are():
    user = {"train": {"lr_decay_iterations": "null"}, "exits": {"criteria": {"kl": "null"}}}
    (run,) = config.runs({"preset": "tiny"} | user).values()
    assert (run.train.lr_decay_iterations, list(run.exits.criteria)) == (
        None,
        ["fixed", "step_norm", "acceleration"],
    )


def test_further_seeds_are_runs_of_their_own_that_differ_in_nothing_else():
    found = config.runs({"preset": "tiny", "run": "mine", "seeds": [1337, 5, 6]})
    assert {name: run.seed for name, run in found.items()} == {
        "mine": 1337,
        "mine-seed5": 5,
        "mine-seed6": 6,
    }
    assert all(run.model_copy(update={"seed": 1337}) == found["mine"] for run in found.values())


@pytest.fixture
def ouro(monkeypatch):
    """A registered architecture with one more key."""

    class OuroConfig(config.ModelConfig):
        halting: bool = False

    module = ModuleType("twoscale.model.ouro")
    module.Config = OuroConfig
    monkeypatch.setitem(sys.modules, "twoscale.model", ModuleType("twoscale.model"))
    monkeypatch.setitem(sys.modules, "twoscale.model.ouro", module)
    return OuroConfig


def test_an_architecture_brings_the_class_of_its_section(ouro):
    (run,) = config.runs(
        {"preset": "tiny", "model": {"architecture": "ouro", "halting": True}}
    ).values()
    made = run.model
    assert isinstance(made, ouro)
    assert (made.halting, made.hidden_size, made.vocab_size) == (True, 16, 257)
    assert config.plain(made)["halting"] is True
    assert config.plain(run)["model"]["halting"] is True
    assert config.ConfigSlice({"model": config.plain(made)}).model == made
    with pytest.raises(
        InputError, match=r"^config key model: unknown key gate, expected one of .*, halting \(did"
    ):
        config.runs({"preset": "tiny", "model": {"architecture": "ouro", "gate": True}})


@pytest.fixture
def tiny() -> config.Config:
    return config.checked(config.preset("tiny"))


def test_a_slice_has_sections_and_plain_values_and_derives_none(tiny):
    """Otherwise a job would compute with formulas of the config that no fingerprint covers."""
    sections = {
        name: config.plain(getattr(tiny, name))
        for name in ("model", "trajectories", "scaling", "exits")
    }
    part = config.ConfigSlice.from_json(
        json.dumps({"seed": 1, "files": {"mine": "abc"}} | sections)
    )
    assert (part.model, part.trajectories, part.seed, part.files) == (
        tiny.model,
        tiny.trajectories,
        1,
        {"mine": "abc"},
    )
    assert part.model is part.model
    for name in ("path_types", "trajectory_sequences", "quality_sequences", "loop_grid"):
        with pytest.raises(
            AttributeError, match=f"this config slice has no '{name}', only seed, files, model, "
        ):
            getattr(part, name)


def test_a_training_identity_and_its_runtime_are_a_whole_section(tiny):
    identity = config.training_identity(tiny)
    part = config.ConfigSlice(identity | {"train": identity["train"] | config.runtime(tiny)})
    train = tiny.train.model_copy(update={"compile": False, "precision": "float32"})
    assert (part.train, part.model, part.seed, part.device) == (train, tiny.model, tiny.seed, "cpu")
    with pytest.raises(
        InputError, match=r"config key train: found no iterations, .*, expected all keys"
    ):
        _ = config.ConfigSlice(identity).train
