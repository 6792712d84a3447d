"""Config sections: derived values, checks between keys, the checkpoint schedule, identities."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.configs import assert_refused
from tests.configs import paper as from_paper
from twoscale import config
from twoscale.base import canonical_json


def small_train(**changes: Any) -> config.TrainConfig:
    schedule = {"iterations": 20, "checkpoint_every": 10, "early_checkpoints": ()}
    return config.TrainConfig(**(schedule | changes))


def test_the_defaults_are_the_numbers_of_the_paper():
    made = config.Config()
    model, train, exits = made.model, made.train, made.exits
    assert made == config.checked(config.preset("paper"))
    assert (model.num_layers, model.num_heads, model.hidden_size, model.context_length) == (
        12,
        12,
        768,
        512,
    )
    assert (model.padded_vocab_size, model.head_dim, model.effective_depth) == (50304, 64, 56)
    assert train.iterations * train.batch_size * model.context_length == pytest.approx(
        300e6, rel=0.03
    )
    assert (train.learning_rate, train.min_learning_rate, train.warmup_iterations) == (
        6e-4,
        6e-5,
        2000,
    )
    assert (train.beta1, train.beta2, train.weight_decay, train.grad_clip) == (0.9, 0.95, 0.1, 1.0)
    assert (exits.max_loops, made.trajectories.loops) == (30, 30)
    for criterion in ("step_norm", "kl", "acceleration"):
        assert exits.criteria[criterion].thresholds[:7:2] == (1e-5, 1e-4, 1e-3, 1e-2)


def test_thresholds_may_be_strings_and_take_the_type_of_their_criterion():
    criteria = {"kl": {"thresholds": ["1e-4", 1]}, "fixed": {"thresholds": ["10", 20.0]}}
    made = from_paper(exits={"criteria": criteria}).exits.criteria
    assert made["kl"].thresholds == (1e-4, 1.0)
    assert made["fixed"].thresholds == (10, 20)
    assert [type(value) for name in ("kl", "fixed") for value in made[name].thresholds] == [
        float,
        float,
        int,
        int,
    ]


@pytest.mark.parametrize(
    ("groups", "labels"),
    [
        ([], ()),
        ([[2], [3, 4], [5]], ("2->3-4", "3-4->5")),
        ([[3, 4]], ("prelude->3-4", "3-4->coda")),
        ([[1, 2]], ("embedding->1-2", "1-2->coda")),
        ([[3, 4, 5, 6]], ("prelude->3-6",)),
        ([[1, 2, 3, 4, 5, 6]], ("embedding->1-6",)),
    ],
)
def test_boundaries_are_between_groups_or_around_the_only_one(groups, labels):
    assert config.ModelConfig(num_layers=6, groups=groups).boundary_labels == labels


@pytest.mark.parametrize(
    ("tokenizer", "vocab_size"), [("gpt2", 50257), ("bytes", 257), ("bpe", 5000)]
)
def test_the_tokenizer_determines_the_vocabulary_of_the_model(tokenizer, vocab_size):
    made = from_paper(tokenizer={"name": tokenizer, "vocab_size": 5000})
    assert made.tokenizer.num_ids == made.model.vocab_size == vocab_size


@pytest.mark.parametrize(("tokens", "sequences"), [(8192, 16), (1023, 1), (1024, 2), (3, 1)])
def test_tokens_to_measure_are_whole_sequences_and_at_least_one(tokens, sequences):
    made = from_paper(trajectories={"tokens": tokens}, exits={"quality_tokens": tokens})
    assert (made.trajectory_sequences, made.quality_sequences) == (sequences, sequences)


MINE = {"file": "my.py", "class": "My"}
PUBLISHED = {"source": "published", "folder": "models/huginn"}
GRIDS = [name for name, section in config.SECTIONS.items() if "criteria" in section.model_fields]
CRITERIA_WRONG = [
    ("newton", {"thresholds": [1.0]}, "", "unknown"),
    ("a/b", {"thresholds": [1.0]}, "", "'a/b'"),
    ("kl", {"thresholds": [1.0], **MINE}, ".file", "'my.py', expected another name"),
    ("mine", {"thresholds": [-1.0], **MINE}, ".thresholds", "-1.0"),
    ("mine", {"thresholds": [1.0], "file": "my.py"}, "", "no class"),
    ("mine", {"thresholds": [1.0], "class": "My"}, "", "no file"),
    ("kl", {"thresholds": []}, ".thresholds", "[]"),
    ("kl", {"thresholds": [1.0, 1.0]}, ".thresholds", "[1.0, 1.0]"),
    ("argmax_stability", {"thresholds": [0.5]}, ".thresholds", "0.5"),
    ("fixed", {"thresholds": [31]}, ".thresholds", "31"),
    ("fixed", {"thresholds": [True]}, ".thresholds", "true"),
    ("kl", {"thresholds": [0.1, -1.0]}, ".thresholds", "-1.0"),
    ("kl", {"thresholds": [0]}, ".thresholds", "0"),
    ("kl", {"thresholds": [float("nan")]}, ".thresholds", "nan"),
]

WRONG = [
    ("model.num_heads", {"model": {"num_heads": 7}}, "7"),
    ("model.groups", {"model": {"groups": [[4, 6]]}}, "[4, 6]"),
    ("model.groups", {"model": {"groups": [[6, 5]]}}, "[6, 5]"),
    ("model.groups", {"model": {"groups": [[12, 13]]}}, "[12, 13]"),
    ("model.groups", {"model": {"groups": [[4, 5], [5, 6]]}}, "layer 5"),
    ("model.groups", {"model": {"groups": [[7], [4]]}}, "[4]"),
    ("train.iterations", {"train": {"iterations": 60001}}, "60001"),
    ("train.micro_batches", {"train": {"micro_batches": 11}}, "11"),
    ("train.processes", {"train": {"processes": 11}}, "11"),
    ("train.nodes", {"train": {"nodes": 3, "processes": 4}}, "3"),
    ("train.shard", {"train": {"shard": True}}, "true"),
    ("train.micro_batches", {"train": {"shard": True, "processes": 4, "micro_batches": 3}}, "3"),
    ("train.min_learning_rate", {"train": {"min_learning_rate": 1.0}}, "1.0"),
    (
        "train.warmup_iterations",
        {"train": {"warmup_iterations": 60001}},
        "60001, expected less than train.lr_decay_",
    ),
    ("data.path", {"data": {"source": "parquet", "path": None}}, "nothing"),
    *(
        ("tokenizer.vocab_size", {"tokenizer": {"name": "bpe", "vocab_size": size}}, str(size))
        for size in (256, 257)
    ),
    ("trajectories.states_sequence", {"trajectories": {"states_sequence": 16}}, "16"),
    ("data.held_out_tokens", {"data": {"held_out_tokens": 32 * 512}}, f"at least {32 * 512 + 1}"),
    ("data.held_out_tokens", {"train": {"held_out_sequences": 5000}}, "train.held_out_sequences"),
    ("data.held_out_tokens", {"exits": {"quality_tokens": 1_000_448}}, "exits.quality_tokens"),
    ("data.held_out_tokens", {"exits": {"latency_repeats": 5000}}, "exits.latency_repeats"),
    ("data.held_out_tokens", {"scaling": {"tokens": 1_000_448}}, "scaling.tokens"),
    ("exits.latency_tokens", {"exits": {"latency_tokens": 513}}, "513"),
    ("path_types.max_period", {"path_types": {"max_period": 17}}, "17"),
    ("path_types.window", {"path_types": {"window": 31}}, "31"),
    ("model.num_kv_heads", {"model": {"num_kv_heads": 5}}, "5"),
    ("model.num_heads", {"model": {"positions": "rotary", "num_heads": 256}}, "256"),
    ("model.state_init", {"model": {"injection": "none"}}, "noise"),
    ("model.loop_norm", {"model": {"loop_norm": True}}, "true"),
    ("model", {"model": {"source": "published"}}, "neither"),
    ("model", {"model": {"folder": "models/huginn"}}, "folder"),
    (
        "model",
        {"model": {**PUBLISHED, "repository": "a/b", "revision": "0" * 40}},
        "repository and folder",
    ),
    ("model.revision", {"model": {"source": "published", "repository": "a/b"}}, "None"),
    ("tokenizer.name", {"model": PUBLISHED}, "gpt2"),
    ("tokenizer.name", {"tokenizer": {"name": "published"}}, "published"),
    (
        "train.backprop_depth",
        {"model": {"injection": "none", "state_init": "input"}, "train": {"backprop_depth": 2}},
        "2",
    ),
    (
        "exits.criteria.exit_gate",
        {"exits": {"criteria": {"exit_gate": {"thresholds": [0.5]}}}},
        "the criterion",
    ),
    (
        "train.exit_gate",
        {"train": {"exit_gate": {}}, "model": {"groups": [[4]]}},
        "model.exit_gate: false and 1 looped",
    ),
    (
        "train.exit_gate",
        {"train": {"exit_gate": {}}, "model": {"exit_gate": True}},
        "model.exit_gate: true and 3 looped",
    ),
    ("train.exit_gate.entropy_weight", {"train": {"exit_gate": {"entropy_weight": -1}}}, "-1"),
    *(
        (f"{section}.criteria.{name}{below}", {section: {"criteria": {name: entry}}}, found)
        for section in GRIDS
        for name, entry, below, found in CRITERIA_WRONG
    ),
]


@pytest.mark.parametrize(("key", "sections", "found"), WRONG)
def test_a_config_that_contradicts_itself_is_refused_in_one_sentence_that_names_the_key(
    key, sections, found
):
    assert_refused(key, found, **sections)


@pytest.mark.parametrize(
    ("every", "early", "expected"), [(10, (20, 5, 40), [5, 10, 20, 30]), (30, (1, 30), [1, 30])]
)
def test_checkpoints_are_the_early_iterations_and_the_grid(every, early, expected):
    train = small_train(iterations=30, checkpoint_every=every, early_checkpoints=early)
    assert config.checkpoint_iterations(train) == expected


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("path_types", "window", 30),  # a step more is in WRONG
        (
            "data",
            "held_out_tokens",
            32 * 512 + 1,
        ),  # the most sequences that a stage reads, and the last target
        ("train", "lr_decay_iterations", None),
        ("tokenizer", "vocab_size", 258),
    ],
)
def test_what_just_fits_is_accepted(section, key, value):
    assert getattr(getattr(from_paper(**{section: {key: value}}), section), key) == value


@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 120), max_size=5),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_a_longer_run_only_appends_checkpoints(every, early, segments, more):
    schedule = {"checkpoint_every": every, "early_checkpoints": early}
    trains = (
        small_train(iterations=every * count, **schedule) for count in (segments, segments + more)
    )
    short, long = map(config.checkpoint_iterations, trains)
    assert long[: len(short)] == short
    assert short[-1] == every * segments
    assert long == sorted(set(long))


# A longer run, or one that is cut, logged or distributed in another way, has the same weights.
RUNTIME = (
    "iterations checkpoint_every early_checkpoints save_seconds log_every print_seconds"
    " micro_batches processes "
)
RUNTIME += "nodes shard recompute prefetch peak_tflops"


def test_identity_and_runtime_partition_the_keys_of_train():
    made = config.Config()
    identity, runtime = config.training_identity(made)["train"], config.runtime(made)
    assert not identity.keys() & runtime.keys()
    # a run that does not train the gate has the identity that it had before there was the key
    assert identity.keys() | runtime.keys() == config.TrainConfig.model_fields.keys() - {
        "exit_gate"
    }
    assert runtime.keys() == set(RUNTIME.split())
    assert config.TrainConfig(**identity, **runtime) == made.train.model_copy(
        update={"compile": True, "precision": "bfloat16"}
    )


@pytest.mark.parametrize(
    "sections",
    [
        {"seed": 1},
        {"compute": {"device": "cpu"}},
        {"model": {"loop_noise": 0.1}},
        {"model": {"groups": [[4]]}},
        {"train": {"learning_rate": 1e-3}},
        {"train": {"cpu_threads": 2}},
        {"train": {"compile": False}},
        {"train": {"precision": "float32"}},
        {"tokenizer": {"name": "bytes"}},
    ],
)
def test_whatever_changes_the_weights_changes_the_identity(sections):
    assert config.training_identity(from_paper(**sections)) != config.training_identity(
        config.Config()
    )


def test_every_section_survives_the_way_through_json():
    mine = {"mine": {"thresholds": [1.0], **MINE}}
    made = from_paper(exits={"criteria": mine})
    for name, section in config.SECTIONS.items():
        dumped = config.plain(getattr(made, name))
        assert section(**json.loads(canonical_json(dumped))) == getattr(made, name)
    assert config.plain(made.exits)["criteria"] == mine


@pytest.mark.parametrize(
    ("tokenizer", "quota"),
    [
        ("gpt2", config.TextQuota("tokens", 300_000_000, 1_500_000)),
        ("bytes", config.TextQuota("characters", 1_500_000_000, 1_500_000)),
        ("bpe", config.TextQuota("characters", 1_500_000_000, 13_500_000)),
        ("published", config.TextQuota("characters", 0, 13_500_000)),
    ],
)
def test_the_quota_counts_what_can_be_counted_before_the_text_exists(tokenizer, quota):
    assert config.text_quota(config.DataConfig(), config.TokenizerConfig(name=tokenizer)) == quota


def test_the_source_of_the_text_depends_neither_on_quotas_nor_on_what_applies_to_tokens():
    quotas = {
        "train_characters": None,
        "train_tokens": None,
        "held_out_tokens": 500_000,
        "held_out_margin": 2,
    }
    source = config.text_source(from_paper(data=quotas | {"near_duplicate_tokens": 50}).data)
    assert source == config.text_source(config.Config().data)
    assert source != config.text_source(from_paper(data={"subset": "sample-100BT"}).data)
    assert config.DataConfig(**source) == config.DataConfig()


def test_an_optional_key_is_left_out_at_its_default_and_comes_back():
    """So runs and checkpoints from before the key keep their identity."""
    default, other = (
        config.ModelConfig(),
        config.ModelConfig(rotary_base=500.0, rotary_scaling={"factor": 4}),
    )
    assert not {"positions", "rotary_base", "source"} & config.plain(default).keys()
    assert config.plain(other)["rotary_base"] == 500.0
    for made in (default, other):
        assert config.ConfigSlice({"model": config.plain(made)}).model == made


@pytest.mark.parametrize(("source", "matters"), [("txt", True), ("fineweb", False)])
def test_the_length_of_pieces_belongs_to_the_text_only_where_documents_are_cut(source, matters):
    data = {"source": source, "path": "a" if matters else None}
    one, other = (
        config.text_source(from_paper(data=data | {"piece_characters": size}).data)
        for size in (50, 60)
    )
    assert (one != other) is matters


@pytest.mark.parametrize(
    ("device", "chosen"), [("cpu", (False, "float32")), ("cuda", (True, "bfloat16"))]
)
def test_auto_is_the_choice_of_the_device_in_the_identity(device, chosen):
    train = config.training_identity(from_paper(compute={"device": device}))["train"]
    assert (train["compile"], train["precision"]) == chosen
