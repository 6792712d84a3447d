"""Layers of the config: paper <- preset <- user. Checks, runs, and the parts that jobs get.

The Snakefile passes the config that Snakemake has merged (config.yaml <- --configfile) and gets
Config objects.
"""

import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import yaml
from pydantic import create_model

from twoscale.base import (
    InputError,
    did_you_mean,
    first_line,
    mismatch,
    study_files,
    study_parts,
)
from twoscale.config.data import TokenizerConfig
from twoscale.config.model import ModelConfig
from twoscale.config.sections import CoreConfig
from twoscale.config.types import (
    FILE_NAME,
    Section,
    build,
    complete,
    is_optional,
    shown,
    unknown_keys,
)

PROJECT = Path(__file__).resolve().parents[3]
PRESETS = PROJECT / "workflow" / "presets"
_DEFAULT_PRESET = "demo"
# What a published model starts from in place of _DEFAULT_PRESET, whose text and sizes are those of
# another model: its text has to be given.
_PUBLISHED_BASE = {
    "compute": {"device": "cpu"},
    "data": {
        "source": None,
        "held_out_tokens": 131_072,
        "held_out_fraction": 0.9,
        "text_shards": 1,
    },
    "trajectories": {"tokens": 4096},
    "exits": {"quality_tokens": 2048},
}
LAYER_KEYS = ("preset", "run", "runs", "release")  # top-level keys that select and name layers
# A name of a run has at most so many characters, because a file name ends at 255 bytes.
_LONGEST_NAME = 100
# No names of runs: words of YAML, and folders in results/.
_RESERVED = (
    *("none", "null", "true", "false"),
    *("logs", "models", "release", "released", "report", "snapshot"),
)

# model.source -> module with a function `open_published`, which opens weights that were not trained
# here.
IMPORTERS = {"published": "twoscale.model.published.weights"}

# --- all sections ---

STUDY_SECTIONS: dict[str, type[Section]] = {
    name: section
    for part in study_parts("config").values()
    for name, section in part.SECTIONS.items()
}

if TYPE_CHECKING:

    class Config(CoreConfig):
        """For the type checker, which does not know the sections of studies."""

        def __getattr__(self, name: str) -> Any: ...

else:
    Config = create_model(
        "Config",
        __base__=CoreConfig,
        __doc__="All sections of one run.",
        **{name: (section, section()) for name, section in STUDY_SECTIONS.items()},
    )

SECTIONS: dict[str, type[Section]] = {
    name: cast(type[Section], field.annotation)
    for name, field in Config.model_fields.items()
    if name not in ("seed", "seeds")
}

# --- layers ---


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated with `overlay`, mapping by mapping; other values are replaced."""
    merged = dict(base)
    for key, value in overlay.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = merge(below, value)
        merged[key] = value
    return merged


@cache
def paper() -> Mapping[str, Any]:
    """Every key that a user can set, at its default. Treat the result as read-only."""
    return user_values(Config())


def user_values(config: Config) -> dict[str, Any]:
    """The config as a nested dict without derived values."""
    values = complete(config)
    del values["model"]["vocab_size"]
    return values


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping with a repeated key, of which YAML readers silently keep the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in reversed(node.value):
            if keys.count(key.value) > 1:
                problem = f"key {key.value} is repeated"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str, name: str) -> Any:
    """The value in a text. `name` begins the sentence on an error, followed by its line."""
    try:
        return yaml.load(text, _UniqueKeys)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # of very many brackets or digits
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise InputError(f"{name}{line}: cannot be read as YAML ({problem}).") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, empty for an empty file.

    Raises InputError with the line of an error.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as YAML ({first_line(error)}).") from error
    values = _parse_yaml(text, str(path)) or {}
    if not isinstance(values, dict):
        raise mismatch(path, shown(values), "keys and their values at the top level")
    return values


def user_config(
    files: Sequence[Path], entries: Sequence[str] = (), preset: str | None = None
) -> dict[str, Any]:
    """The user's layers as Snakemake merges them.

    They are config.yaml and further files, then KEY=VALUE entries of a command line. With `preset`
    for a run of this preset, which has its name.
    """
    layers = [read_yaml(file) for file in (PROJECT / "config.yaml", *files) if file.exists()]
    if preset:
        layers.append({"preset": preset, "run": preset})
    for entry in entries:
        key, found, value = entry.partition("=")
        if not found:
            raise mismatch("option --config", shown(entry), "KEY=VALUE")
        layers.append({key: _parse_yaml(value, f"option --config {key}")})
    return reduce(merge, layers, {})


@cache
def preset(name: str) -> dict[str, Any]:
    """Every key at the values of a preset, from its file and those of the studies.

    Treat the result as read-only.
    """
    known = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    if name not in known:
        expected = f"one of {', '.join(known)}{did_you_mean(name, known)}"
        raise mismatch("config key preset", repr(name), expected)
    if name == "paper":
        return dict(paper())
    layers = [read_yaml(file).get(name, {}) for file in study_files("presets.yaml").values()]
    layers.append(read_yaml(PRESETS / f"{name}.yaml"))
    return reduce(merge, layers, dict(paper()))


def _all_layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The selected run: paper <- preset <- folder of a published model <- user."""
    user = {key: value for key, value in config.items() if key not in LAYER_KEYS}
    _check_top_level(user, LAYER_KEYS)
    if _has_own_base(config):
        base = merge(paper(), _PUBLISHED_BASE)
    else:
        base = preset(config.get("preset", _DEFAULT_PRESET))
    return _overlaid(base, user)


def _has_own_base(config: Mapping[str, Any]) -> bool:
    """Whether the selected run is a published model without a preset of its own.

    config.yaml names _DEFAULT_PRESET.
    """
    source = _mapping("model", config.get("model")).get("source")
    return source == "published" and config.get("preset", _DEFAULT_PRESET) == _DEFAULT_PRESET


def _overlaid(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`, with the layer of a published model's folder between the two."""
    for name, section in overlay.items():
        if isinstance(section, Mapping) and section.get("criteria") == {}:
            expected = "criteria to add or to change; null removes one, as in {kl: null}"
            raise mismatch(f"config key {name}.criteria", {}, expected)
    model = _mapping("model", overlay.get("model"))
    if isinstance(folder := model.get("folder"), str):
        # the layer depends on one key of the user's, the context; options of Snakemake are strings
        context = str(model.get("context_length", ""))
        own = {"model": {"context_length": int(context)}} if context.isdecimal() else {}
        layer = folder_reader().folder_layer(os.path.expanduser(folder), merge(base, own))
        base = merge(base, layer)
    return merge(base, overlay)


def folder_reader() -> Any:
    """The module that reads folders of published models, imported where a config names one."""
    return importlib.import_module("twoscale.model.published.folder")


# --- checks ---


def _check_top_level(values: Mapping[str, Any], further: Sequence[str] = ()) -> None:
    """Refuse a key that is neither a section nor one of the `further` ones."""
    known = [*Config.model_fields, *further]
    unknown = sorted(str(key) for key in values if key not in known)
    if not unknown:
        return
    key = unknown[0]
    problem = unknown_keys(unknown, known)
    for name, section in SECTIONS.items():
        if key in section.model_fields:
            problem = f"unknown key {key}, expected it in a section, as in {name}: {{{key}: …}}"
    raise InputError(f"config key (top level): {problem}.")


def checked(merged: Mapping[str, Any]) -> Config:
    """The Config of all layers merged; the first invalid key or value is an InputError."""
    _check_top_level(merged)
    values = dict(merged)
    tokenizer = values["tokenizer"] = build(TokenizerConfig, values["tokenizer"], "tokenizer")
    model = values["model"]
    if isinstance(model, Mapping):
        if "vocab_size" in model:
            reason = "which follows from the section tokenizer"
            raise InputError(f"config key model: unknown key vocab_size, {reason}.")
        section = model_config_class(model.get("architecture", "transformer"))
        values["model"] = build(section, {**model, "vocab_size": tokenizer.num_ids}, "model")
    return build(Config, values)


def model_config_class(architecture: Any) -> type[ModelConfig]:
    """The config class of an architecture: ModelConfig, or `Config` of its module."""
    if architecture == "transformer":
        return ModelConfig
    found: Any = None
    with suppress(ModuleNotFoundError):
        found = getattr(importlib.import_module(f"twoscale.model.{architecture}"), "Config", None)
    if isinstance(found, type) and issubclass(found, ModelConfig):
        return found
    expected = "transformer or a module of twoscale.model with a class Config, a ModelConfig"
    raise mismatch("config key model.architecture", shown(architecture), expected)


def modules_of_model(config: Config) -> list[str]:
    """Modules that jobs import by name for such a model: its architecture, and the importer."""
    architecture = config.model.architecture
    source = config.model.source
    modules = []
    if architecture != "transformer":
        modules.append(f"twoscale.model.{architecture}")
    if source in IMPORTERS:
        modules.append(IMPORTERS[source])
    return modules


# --- runs ---


def runs(config: Mapping[str, Any]) -> dict[str, Config]:
    """Run name -> Config: the run that `run` names, the same under further seeds, those of `runs`.

    The run NAME under another seed S is NAME-seedS. `runs` maps names to overrides.
    """
    for key in ("preset", "run"):
        if key in config and not isinstance(config[key], str | int | float):
            expected = f"a name, such as {key}: demo"
            raise mismatch(f"config key {key}", shown(config[key]), expected)
    merged = _all_layers(config)
    unnamed = "published" if _has_own_base(config) else config.get("preset", _DEFAULT_PRESET)
    selected = str(config.get("run", unnamed))
    _check_name("run", selected)
    configs = _under_seeds(selected, merged)
    for name, overrides in _mapping("runs", config.get("runs")).items():
        run = str(name)
        _check_name("runs", run)
        if run in configs:
            found = f"{run!r}, the name of the selected run or of one under another seed"
            raise mismatch("config key runs", found, "another name")
        values = _mapping(f"runs.{run}", overrides)
        with _named(f"run {run} (runs.{run})"):
            configs[run] = checked(_overlaid(merged, values))
    return configs


def _check_name(key: str, run: str) -> None:
    if not re.fullmatch(FILE_NAME, run) or len(run) > _LONGEST_NAME:
        expected = f"at most {_LONGEST_NAME} letters, digits, '.', '_' and '-'"
        raise mismatch(f"config key {key}", shown(run), expected)
    sweeps = [name for name, section in SECTIONS.items() if "overrides" in section.model_fields]
    if run.lower() in (*_RESERVED, *sweeps):
        raise mismatch(f"config key {key}", f"{run!r}, a reserved name", "another name")


@contextmanager
def _named(run: str) -> Iterator[None]:
    """Begin the sentence of an InputError with the run that it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{run}: {error}") from error


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, an empty one for null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise mismatch(f"config key {key}", shown(value), "a section of keys")
    return value


def _under_seeds(run: str, merged: Mapping[str, Any]) -> dict[str, Config]:
    """A run with all its layers merged, and the same under each further seed."""
    first = checked(merged)
    configs = {run: first}
    for seed in first.seeds:
        if seed != first.seed:
            configs[f"{run}-seed{seed}"] = checked({**merged, "seed": seed})
    return configs


def studies(config: Mapping[str, Any]) -> dict[str, Config]:
    """Run name -> Config of all studies with runs, under every seed.

    Such a study has a function `runs`: selected run -> sweep -> overrides by name. A sweep is also
    a section, with `overrides` of all its runs. Names are <sweep>/<name>, and
    <sweep>/<name>-seed<seed> under another seed than `seed`. The overrides of a run take precedence
    over those of its sweep, and these over all other layers. A published model, which is not
    trained here, has none.
    """
    merged = _all_layers(config)
    selected = checked(merged)
    configs: dict[str, Config] = {}
    if selected.model.source == "published":
        return configs
    sweeps: dict[str, dict[str, Any]] = {}
    for part in study_parts().values():
        if hasattr(part, "runs"):
            sweeps |= part.runs(selected)
    for sweep, named in sweeps.items():
        base = merge(merged, getattr(selected, sweep).overrides)
        for name, overrides in named.items():
            with _named(f"run {sweep}/{name} ({sweep}.overrides)"):
                configs |= _under_seeds(f"{sweep}/{name}", merge(base, overrides))
    return configs


# --- slices ---


class ConfigSlice:
    """Part of a config, as a job gets it: sections and plain values (seed, …) as attributes.

    A section is built when it is first read. Sections are complete: a job gets no default silently.
    It computes nothing of several sections either: a value derived from them is an attribute if the
    slice has it.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(json.loads(text))

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            known = ", ".join(values) or "nothing"
            raise AttributeError(f"this config slice has no {name!r}, only {known}")
        self.__dict__[name] = value = _section(name, values[name])
        return value


def _section(name: str, values: Any) -> Any:
    """The section object of a section's dict; any other value as it is."""
    if name not in SECTIONS or not isinstance(values, Mapping):
        return values
    section = SECTIONS[name]
    if name == "model":
        section = model_config_class(values.get("architecture", "transformer"))
    needed = [key for key, field in section.model_fields.items() if not is_optional(field)]
    if missing := [key for key in needed if key not in values]:
        raise mismatch(f"config key {name}", f"no {', '.join(missing)}", "all keys of the section")
    return build(section, values, name)
