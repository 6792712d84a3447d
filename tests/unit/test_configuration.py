"""Layers, presets, the schema, and what the messages name."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from twoscale import config, sections
from twoscale.errors import InputError

PRESETS = sorted(path.stem for path in config.PRESETS.glob("*.yaml"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_whole_configuration(name):
    (run,) = config.runs({"preset": name})
    assert run == name


def test_the_schema_knows_the_keys_of_the_settings_and_no_others():
    schema = config.read_yaml(config.SCHEMA)
    for field in dataclasses.fields(config.Config):
        section = schema["properties"][field.name]
        if not dataclasses.is_dataclass(field.type):
            continue
        names = {inner.name for inner in dataclasses.fields(field.type)} - {"vocabulary"}  # derived from the tokenizer
        assert set(section["properties"]) == names == set(section["required"])
        assert section["additionalProperties"] is False


def test_the_users_settings_win_over_the_preset_and_the_preset_over_the_paper():
    chosen = config.runs({"preset": "tiny", "model": {"width": 24}})["tiny"]
    assert (chosen.model.hidden_size, chosen.model.num_layers, chosen.model.loops_sigma) == (24, 4, 0.5)


def test_runs_take_their_overrides_over_the_chosen_run():
    config = {"preset": "tiny", "run": "base", "seed": 5, "runs": {"branch": {"model": {"sandwich": "branch"}}}}
    runs = config.runs(config)
    assert list(runs) == ["base", "branch"]
    assert (runs["base"].model.sandwich, runs["branch"].model.sandwich) == ("post_residual", "branch")
    assert runs["branch"].seed == 5


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"modle": {}}, r"config key \(top level\): unknown key modle, expected one of seed, "),
        ({"train": {"lr": 1}}, "config key train: unknown key lr, expected one of iterations, "),
        ({"model": {"width": "64"}}, "config key model.hidden_size: '64' is not of type 'integer'"),
        ({"train": {"learning_rate": "1e-4"}}, "config key train.learning_rate: '1e-4' is not of type 'number'"),
        (
            {"exits": {"criteria": {"mine": {"thresholds": [1], "file": "my.py"}}}},
            "exits.criteria.mine: 'class' is a dependency",
        ),
        ({"preset": "huge"}, "config key preset: found 'huge', expected one of demo, "),
        ({"run": "a b"}, "config key run: found 'a b'"),
        ({"runs": {"x": {"model": {"heads": 3}}}}, "config key model.num_heads: 3 heads do not divide"),
    ],
)
def test_the_first_wrong_key_or_value_is_named(config, sentence):
    with pytest.raises(InputError, match=sentence):
        config.runs({"preset": "tiny"} | config)


def test_the_environments_pin_what_the_requirements_pin():
    root = config.PROJECT
    lines = (line.partition("#")[0].strip() for line in (root / "requirements.txt").read_text().splitlines())
    pinned = dict(line.split("==") for line in lines if line)
    for path in Path(root, "envs").glob("*.yaml"):
        (packages,) = (
            entry["pip"] for entry in yaml.safe_load(path.read_text())["dependencies"] if isinstance(entry, dict)
        )
        for package in packages:
            name, version = package.split("==")
            assert pinned[name] == version, f"{path.name}: {package}"


def test_what_the_snakefile_imports_is_quick_to_import():
    """`snakemake -n` reads the configuration; pandas, pyarrow and torch would take longer than that."""
    code = (
        "import sys; from twoscale import configuration, fingerprint, settings, tables;"
        "print({'pandas', 'pyarrow', 'torch'} & set(sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": str(config.PROJECT / "scripts")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
