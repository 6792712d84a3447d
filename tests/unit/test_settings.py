"""settings: layers of configuration, checks between keys, the schedule of checkpoints, identities."""

import json
import random
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from small import PRESETS, TRAIN, model_config, preset, train_config

from twoscale import config
from twoscale.errors import InputError


def changed(config: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """`config` with some keys of some sections replaced."""
    return config | {
        name: config[name] | section if isinstance(section, dict) else section for name, section in config.items()
    }


# --- merge -----------------------------------------------------------------------------------------------------


def test_merge_goes_into_mappings_and_replaces_every_other_value():
    base = {"seed": 1, "model": {"width": 8, "groups": [[2], [3]]}, "data": {"path": None}}
    overlay = {"model": {"groups": [[4]]}, "data": {"path": "x.parquet"}}
    assert config.merge(base, overlay) == {
        "seed": 1,
        "model": {"width": 8, "groups": [[4]]},
        "data": {"path": "x.parquet"},
    }


def test_merge_leaves_both_layers_as_they_were():
    base, overlay = {"a": {"b": [1]}}, {"a": {"b": [2], "c": 3}}
    config.merge(base, overlay)
    assert (base, overlay) == ({"a": {"b": [1]}}, {"a": {"b": [2], "c": 3}})


def test_merge_drops_an_exit_rule_set_to_null_and_keeps_the_others():
    base = {"exits": {"criteria": {"kl": {"thresholds": [1.0]}, "fixed": {"thresholds": [30]}}}}
    overlay = {"exits": {"criteria": {"kl": None, "step_norm": {"thresholds": [0.1]}}}}
    criteria = config.merge(base, overlay)["exits"]["criteria"]
    assert criteria == {"fixed": {"thresholds": [30]}, "step_norm": {"thresholds": [0.1]}}


def test_merge_keeps_null_where_null_is_a_value():
    assert config.merge({"train": {"backprop_depth": 8}}, {"train": {"backprop_depth": None}}) == {
        "train": {"backprop_depth": None}
    }


# --- presets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_laid_over_the_paper_is_a_valid_configuration(name, paper):
    made = config.from_config(config.merge(paper, preset(name)))
    assert made.train.iterations == config.checkpoint_iterations(made.train)[-1]


def test_the_paper_preset_has_the_numbers_of_the_paper(paper):
    made = config.from_config(paper)
    model, train, exits = made.model, made.train, made.exits
    assert (model.num_layers, model.num_heads, model.hidden_size, model.context_length) == (12, 12, 768, 512)
    assert model.groups == ((4,), (5, 6), (7,))
    assert (model.vocab_size, model.padded_vocab_size, model.head_dim) == (50257, 50304, 64)
    assert (model.mean_loops, model.effective_depth) == (12, 56)
    assert train.iterations == 60000
    assert train.iterations * train.batch_size * model.context_length == pytest.approx(300e6, rel=0.03)
    assert (train.learning_rate, train.min_learning_rate, train.warmup_iterations) == (6e-4, 6e-5, 2000)
    assert (train.beta1, train.beta2, train.weight_decay, train.grad_clip) == (0.9, 0.95, 0.1, 1.0)
    assert (exits.max_loops, made.trajectories.loops) == (30, 30)
    for rule in ("step_norm", "kl", "acceleration"):
        assert exits.criteria[rule]["thresholds"][::2] == [1e-5, 1e-4, 1e-3, 1e-2]


# --- derived values --------------------------------------------------------------------------------------------


def test_groups_and_boundaries_are_named_by_their_layers():
    model = model_config(layers=12, groups=[[4], [5, 6], [7]])
    assert model.group_labels == ("4", "5-6", "7")
    assert model.boundary_labels == ("4->5-6", "5-6->7")
    assert model_config(groups=[]).boundary_labels == ()


@pytest.mark.parametrize(
    ("groups", "depth"), [([], 12), ([[4], [5, 6], [7]], 8 + 4 * 12), ([[3, 4, 5, 6]], 8 + 4 * 12), ([[1]], 11 + 12)]
)
def test_effective_depth_counts_looped_layers_once_per_mean_loop(groups, depth):
    assert model_config(layers=12, groups=groups, mean_loops=12).effective_depth == depth


@pytest.mark.parametrize(("vocabulary", "padded"), [(50257, 50304), (257, 320), (64, 64), (65, 128)])
def test_the_embedding_has_a_multiple_of_64_rows(vocabulary, padded):
    assert model_config(vocabulary=vocabulary).padded_vocab_size == padded


@pytest.mark.parametrize(("tokenizer", "vocabulary"), [("gpt2", 50257), ("bytes", 257), ("bpe", 4096)])
def test_the_tokenizer_decides_the_vocabulary(tokenizer, vocabulary, paper):
    made = config.from_config(changed(paper, tokens={"tokenizer": tokenizer, "entries": 4096}))
    assert made.tokens.vocabulary == made.model.vocab_size == vocabulary


@pytest.mark.parametrize(("tokens", "sequences"), [(8192, 16), (1023, 1), (1024, 2), (3, 1)])
def test_tokens_to_measure_are_whole_blocks_and_at_least_one(tokens, sequences, paper):
    made = config.from_config(changed(paper, trajectories={"tokens": tokens}, exits={"quality_tokens": tokens}))
    assert (made.trajectory_sequences, made.quality_sequences) == (sequences, sequences)


@pytest.mark.parametrize(
    ("data", "label"),
    [
        ({"source": "fineweb", "subset": "sample-10BT"}, "FineWeb sample-10BT"),
        ({"source": "parquet", "path": "texts/mine.parquet"}, "parquet mine.parquet"),
        ({"source": "parquet", "path": "texts/folder/"}, "parquet folder"),
        ({"source": "python_docs"}, "Python documentation"),
    ],
)
def test_the_text_has_a_name_for_figures(data, label, paper):
    assert config.text_label(config.from_config(changed(paper, data=data)).data) == label


# --- checks between keys ---------------------------------------------------------------------------------------

WRONG = [
    ("model.num_heads", {"model": {"heads": 7}}, "7"),
    ("model.groups", {"model": {"groups": [[4, 6]]}}, "[4, 6]"),
    ("model.groups", {"model": {"groups": [[6, 5]]}}, "[6, 5]"),
    ("model.groups", {"model": {"groups": [[12, 13]]}}, "[12, 13]"),
    ("model.groups", {"model": {"groups": [[0]]}}, "[0]"),
    ("model.groups", {"model": {"groups": [[4, 5], [5, 6]]}}, "layer 5"),
    ("model.groups", {"model": {"groups": [[7], [4]]}}, "[4]"),
    ("train.iterations", {"train": {"iterations": 60001}}, "60001"),
    ("train.batch_size", {"train": {"micro_batches": 3}}, "10"),
    ("train.batch_size", {"train": {"processes": 4}}, "10"),
    ("train.min_learning_rate", {"train": {"min_learning_rate": 1.0}}, "1.0"),
    ("train.lr_decay_iterations", {"train": {"lr_decay_iterations": 2000}}, "2000"),
    ("tokenizer.vocab_size", {"tokens": {"tokenizer": "bpe", "entries": 65537}}, "65537"),
    ("data.path", {"data": {"source": "parquet", "path": None}}, "nothing"),
    ("trajectories.states_sequence", {"trajectories": {"states_sequence": 16}}, "16"),
    ("data.held_out_tokens", {"tokens": {"held_out": 32 * 512}}, f"at least {32 * 512 + 1}"),
    ("data.held_out_tokens", {"train": {"held_out_sequences": 5000}}, "train.held_out_sequences"),
    ("data.held_out_tokens", {"trajectories": {"tokens": 1_000_448}}, "trajectories.tokens"),
    ("data.held_out_tokens", {"exits": {"quality_tokens": 1_000_448}}, "exits.quality_tokens"),
    ("data.held_out_tokens", {"exits": {"latency_repeats": 5000}}, "exits.latency_repeats"),
    ("exits.latency_tokens", {"exits": {"latency_tokens": 513}}, "513"),
    ("exits.criteria.newton", {"exits": {"criteria": {"newton": {"thresholds": [1.0]}}}}, "unknown"),
    (
        "exits.criteria.kl.file",
        {"exits": {"criteria": {"kl": {"thresholds": [1.0], "file": "my.py", "class": "My"}}}},
        "'my.py', expected another name",
    ),
    (
        "exits.criteria.mine.thresholds",
        {"exits": {"criteria": {"mine": {"thresholds": [-1.0], "file": "my.py", "class": "My"}}}},
        "-1.0",
    ),
    (
        "exits.criteria.argmax_stability.thresholds",
        {"exits": {"criteria": {"argmax_stability": {"thresholds": [0.5]}}}},
        "0.5",
    ),
    ("pareto.criteria.newton", {"pareto": {"criteria": {"newton": {"thresholds": [1.0]}}}}, "unknown"),
    ("pareto.latency_tokens", {"pareto": {"latency_tokens": 513}}, "513"),
    ("data.held_out_tokens", {"scaling": {"tokens": 1_000_448}}, "scaling.tokens"),
    ("data.held_out_tokens", {"pareto": {"quality_tokens": 1_000_448}}, "pareto.quality_tokens"),
    ("exits.criteria.fixed.thresholds", {"exits": {"criteria": {"fixed": {"thresholds": [31]}}}}, "31"),
    ("exits.criteria.fixed.thresholds", {"exits": {"criteria": {"fixed": {"thresholds": [1.5]}}}}, "1.5"),
    ("exits.criteria.fixed.thresholds", {"exits": {"criteria": {"fixed": {"thresholds": [True]}}}}, "True"),
    ("exits.criteria.kl.thresholds", {"exits": {"criteria": {"kl": {"thresholds": [0.1, -1.0]}}}}, "-1.0"),
    ("exits.criteria.kl.thresholds", {"exits": {"criteria": {"kl": {"thresholds": [0]}}}}, "0"),
    ("exits.criteria.kl.thresholds", {"exits": {"criteria": {"kl": {"thresholds": ["1e-4"]}}}}, "'1e-4'"),
    ("exits.criteria.kl.thresholds", {"exits": {"criteria": {"kl": {"thresholds": [float("nan")]}}}}, "nan"),
    ("exits.criteria.kl.thresholds", {"exits": {"criteria": {"kl": {"thresholds": [float("inf")]}}}}, "inf"),
]


@pytest.mark.parametrize(("key", "sections", "found"), WRONG)
def test_a_configuration_that_contradicts_itself_is_refused_in_one_sentence_that_names_the_key(
    key, sections, found, paper
):
    with pytest.raises(InputError) as refusal:
        config.from_config(changed(paper, **sections))
    message = str(refusal.value)
    assert message.startswith(f"config key {key}:")
    assert found in message
    assert "expected" in message
    assert message.endswith(".")
    assert "\n" not in message


def test_the_dense_benchmark_has_every_rule_and_the_loop_counts_that_the_budget_allows(paper):
    mine = {"thresholds": [1.0], "file": "my.py", "class": "My"}
    sections = {"exits": paper["exits"] | {"budget": 10, "criteria": {"fixed": {"thresholds": [10]}, "mine": mine}}}
    sections["scaling"] = {"loops": [4, 1, 64, 2, 1]}
    dense = config.from_config(changed(paper, **sections)).dense_exits
    assert dense.rules == paper["pareto"]["criteria"] | {"mine": mine, "fixed": {"thresholds": [1, 2, 4, 10]}}
    assert (dense.budget, dense.latency_repeats) == (10, paper["pareto"]["latency_repeats"])


def test_held_out_text_that_is_just_long_enough_is_accepted(paper):
    enough = 32 * 512 + 1  # the most sequences that a stage asks for, and the target of the last token
    made = config.from_config(changed(paper, tokens={"held_out": enough}))
    assert made.data.held_out_tokens == enough


def test_a_learning_rate_that_never_decays_is_accepted():
    assert train_config(lr_decay_iterations=None).lr_decay_iterations is None


# --- schedule of checkpoints -----------------------------------------------------------------------------------


def test_checkpoints_are_the_early_steps_and_the_grid():
    train = train_config(iterations=30, checkpoint_every=10, early_checkpoints=(20, 5, 40))
    assert config.checkpoint_iterations(train) == [5, 10, 20, 30]


def test_a_longer_run_only_appends_checkpoints():
    draw = random.Random(0)
    for _ in range(300):
        every = draw.randint(1, 40)
        early = tuple(draw.randint(1, 120) for _ in range(draw.randint(0, 5)))
        shorter, longer = sorted((every * draw.randint(1, 9), every * draw.randint(1, 9)))
        short, long = (
            config.checkpoint_iterations(
                train_config(iterations=iterations, checkpoint_every=every, early_checkpoints=early)
            )
            for iterations in (shorter, longer)
        )
        assert long[: len(short)] == short
        assert short[-1] == shorter
        assert long == sorted(set(long))


# --- identity --------------------------------------------------------------------------------------------------


OPERATION_CHANGES = {
    "iterations": 65000,
    "checkpoint_every": 2500,
    "early_checkpoints": [7],
    "save_seconds": 1,
    "micro_batches": 2,
    "processes": 5,
    "compile": False,
    "recompute": True,
    "prefetch": False,
    "peak_tflops": 100.0,
}


def test_identity_and_operation_share_the_keys_of_train_among_them(paper):
    made = config.from_config(paper)
    identity, operation = config.training_identity(made)["train"], config.runtime(made)
    assert not identity.keys() & operation.keys()
    assert identity.keys() | operation.keys() == {field.name for field in fields(config.TrainConfig)} == TRAIN.keys()
    assert operation.keys() == OPERATION_CHANGES.keys()


@pytest.mark.parametrize(("key", "value"), OPERATION_CHANGES.items())
def test_a_longer_or_differently_cut_run_has_the_same_identity(key, value, paper):
    identity = config.training_identity(config.from_config(paper))
    assert config.training_identity(config.from_config(changed(paper, train={key: value}))) == identity


@pytest.mark.parametrize(
    "sections",
    [
        {"seed": 1},
        {"compute": {"device": "cpu"}},
        {"model": {"loop_noise": 0.1}},
        {"model": {"groups": [[4]]}},
        {"train": {"learning_rate": 1e-3}},
        {"train": {"cpu_threads": 2}},
        {"tokens": {"tokenizer": "bytes"}},
    ],
)
def test_whatever_changes_the_weights_changes_the_identity(sections, paper):
    identity = config.training_identity(config.from_config(paper))
    assert config.training_identity(config.from_config(changed(paper, **sections))) != identity


def test_the_identity_survives_the_journey_through_json(paper):
    identity = config.training_identity(config.from_config(paper))
    again = json.loads(canonical_json(identity))
    assert config.ModelConfig(**again["model"]) == config.from_config(paper).model


def test_canonical_json_depends_on_values_and_not_on_the_order_of_keys():
    one = {"b": 1, "a": {"d": (1, 2), "c": None}}
    other = {"a": {"c": None, "d": [1, 2]}, "b": 1}
    assert canonical_json(one) == canonical_json(other)
    assert canonical_json({"a": [1, 2]}) != canonical_json({"a": [2, 1]})


def test_reading_settings_imports_no_heavy_library():
    scripts = Path(config.__file__).parents[1]
    code = "import sys, twoscale.settings; print(sorted({'torch', 'numpy', 'pandas', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=scripts, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_budget_counts_what_can_be_counted_before_the_text_is_there(paper):
    def budget(tokenizer):
        paper["tokens"]["tokenizer"] = tokenizer
        chosen = config.from_config(paper)
        return config.text_quota(chosen.data, chosen.tokens)

    assert budget("gpt2") == config.TextQuota("tokens", 300_000_000, 1_000_000)
    assert budget("bytes") == config.TextQuota("characters", 1_500_000_000, 1_000_000)
    assert budget("bpe") == config.TextQuota("characters", 1_500_000_000, 9_000_000)
