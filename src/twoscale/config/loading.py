"""Layers of the config: paper <- preset <- user. Checks, runs, the runs of studies, and the parts
that jobs get.

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

from twoscale.base import InputError, did_you_mean, first_line, study_files, study_parts
from twoscale.config.model import ModelConfig
from twoscale.config.sections import CoreConfig
from twoscale.config.types import (
    FILE_NAME,
    Section,
    build,
    complete,
    is_optional,
    shown,
    unknown_key,
)

PROJECT = Path(__file__).resolve().parents[3]
PRESETS = PROJECT / "workflow" / "presets"
DEFAULT_PRESET = "demo"
# What a published model starts from in place of DEFAULT_PRESET, whose text and sizes are those of
# another model: its text has to be given.
PUBLISHED_BASE = {
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
NO_NAMES, LONGEST_NAME = (
    ("none", "null", "true", "false"),
    100,
)  # of runs; a file name with more ends at 255 bytes
RESERVED = (
    "logs",
    "models",
    "release",
    "released",
    "report",
    "snapshot",
)  # folders in results/, no runs

# model.source -> module with a function `open_published`, which opens weights that were not trained
# here.
IMPORTERS = {"published": "twoscale.model.published.weights"}
# Module that reads folders of published models, imported only where a config names one.
FOLDERS = "twoscale.model.published.folder"

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


def merge(
    base: Mapping[str, Any], overlay: Mapping[str, Any], keep_null: bool = False
) -> dict[str, Any]:
    """`base` updated with `overlay`, mapping by mapping; any other value of the overlay replaces.

    An exit criterion that the overlay sets to null is removed, because a mapping could otherwise
    only grow; with `keep_null` it stays, to be removed from a lower layer.
    """
    merged = dict(base)
    for key, value in overlay.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            merged[key] = merge(base[key], value, keep_null)
            if key == "criteria" and not keep_null:
                merged[key] = {
                    name: entry for name, entry in merged[key].items() if entry is not None
                }
        else:
            merged[key] = (
                None if value == "null" else value
            )  # a string in nested values of --config
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
    """Refuses a mapping with a repeated key, of which YAML readers keep the last value without a
    word.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value} is repeated", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


# For files of this project: libyaml, where PyYAML has it, is faster, but its messages say less.
_FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, loader: Any = _UniqueKeys) -> dict[str, Any]:
    """The mapping in a YAML file, empty for an empty file. Raises InputError with the line of an
    error.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), loader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read ({first_line(error)}), expected a YAML file."
        ) from error
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
    ) as error:  # of nesting, and of a number with very many digits
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or first_line(error)
        raise InputError(f"{path}{line}: cannot be read as YAML ({problem}).") from error
    if values is not None and not isinstance(values, dict):
        raise InputError(
            f"{path}: found {shown(values)}, expected keys and their values at the top level."
        )
    return values or {}


def user_config(
    files: Sequence[Path], entries: Sequence[str] = (), preset: str | None = None
) -> dict[str, Any]:
    """The user's layers as Snakemake merges them: config.yaml and further files, then KEY=VALUE
    entries of a command line. With `preset` for a run of this preset, which has its name.
    """
    merged: dict[str, Any] = {}
    for file in [*filter(Path.exists, [PROJECT / "config.yaml"]), *files]:
        merged = merge(merged, read_yaml(file), keep_null=True)
    for entry in [*([f"preset={preset}", f"run={preset}"] if preset else []), *entries]:
        key, found, value = entry.partition("=")
        try:
            if not found:
                raise yaml.YAMLError
            merged = merge(merged, {key: yaml.safe_load(value)}, keep_null=True)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise InputError(
                f"option --config: found {shown(entry)}, expected KEY=VALUE with YAML."
            ) from error
    return merged


@cache
def preset(name: str) -> dict[str, Any]:
    """Every key at the values of a preset: the paper's values, those of the studies, and the
    preset's file on top.

    Treat the result as read-only.
    """
    known = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    if name not in known:
        expected = f"one of {', '.join(known)}{did_you_mean(name, known)}"
        raise InputError(f"config key preset: found {name!r}, expected {expected}.")
    if name == "paper":
        return dict(paper())
    of_studies = (
        read_yaml(path, _FAST).get(name, {}) for path in study_files("presets.yaml").values()
    )
    return reduce(merge, [*of_studies, read_yaml(PRESETS / f"{name}.yaml", _FAST)], dict(paper()))


def _chosen(config: Mapping[str, Any]) -> dict[str, Any]:
    """All layers of the selected run: paper <- preset <- folder of a published model <- user."""
    user = {key: value for key, value in config.items() if key not in LAYER_KEYS}
    check_top_level(user, LAYER_KEYS)
    base = (
        merge(paper(), PUBLISHED_BASE)
        if _has_own_base(config)
        else preset(config.get("preset", DEFAULT_PRESET))
    )
    return _overlaid(base, user)


def _has_own_base(config: Mapping[str, Any]) -> bool:
    """Whether the selected run is a published model without a preset of its own; config.yaml names
    DEFAULT_PRESET.
    """
    published = _mapping("model", config.get("model")).get("source") == "published"
    return published and config.get("preset", DEFAULT_PRESET) == DEFAULT_PRESET


def _overlaid(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`; where it names the folder of a published model, what that says is
    between the two.
    """
    for name, section in overlay.items():
        if isinstance(section, Mapping) and section.get("criteria") == {}:
            expected = "criteria to add or to change; null removes one, as in {kl: null}"
            raise InputError(f"config key {name}.criteria: found {{}}, expected {expected}.")
    model = overlay.get("model")
    if not isinstance(model, Mapping) or not isinstance(folder := model.get("folder"), str):
        return merge(base, overlay)
    # of the user's keys, which come last, the folder's depend on the context alone; options of
    # Snakemake are strings
    context = str(model.get("context_length", ""))
    values = merge(base, {"model": {"context_length": int(context)}} if context.isdecimal() else {})
    return merge(
        merge(base, folder_reader().folder_layer(os.path.expanduser(folder), values)), overlay
    )


def folder_reader() -> Any:
    """The module that reads folders of published models."""
    return importlib.import_module(FOLDERS)


# --- checks ---


def check_top_level(values: Mapping[str, Any], further: Sequence[str] = ()) -> None:
    """Refuse a key that is neither a section nor one of the `further` ones; one that a section has
    is named with it.
    """
    known = [*Config.model_fields, *further]
    unknown = sorted(str(key) for key in values if key not in known)
    for key in unknown:
        sections = [name for name, section in SECTIONS.items() if key in section.model_fields]
        if len(sections) == 1:
            place = f"expected it in a section, as in {sections[0]}: {{{key}: …}}"
            raise InputError(f"config key (top level): unknown key {key}, {place}.")
    if unknown:
        raise InputError(unknown_key("(top level)", unknown, known))


def checked(merged: Mapping[str, Any]) -> Config:
    """The Config of all layers merged; the first invalid key or value is an InputError."""
    check_top_level(merged)
    model = merged.get("model")
    if isinstance(model, Mapping):
        if "vocab_size" in model:
            raise InputError(
                "config key model: unknown key vocab_size, which follows from the section"
                " tokenizer."
            )
        model = build(model_config_class(model.get("architecture", "transformer")), model, "model")
    return build(Config, {**merged, "model": model})


def model_config_class(architecture: Any) -> type[ModelConfig]:
    """The config class of an architecture: ModelConfig, or `Config` of the module
    twoscale.model.<architecture>.
    """
    if architecture == "transformer":
        return ModelConfig
    found = None
    if isinstance(architecture, str) and re.fullmatch(r"[a-z][a-z0-9_]*", architecture):
        with suppress(ModuleNotFoundError):
            found = getattr(
                importlib.import_module(f"twoscale.model.{architecture}"), "Config", None
            )
    if isinstance(found, type) and issubclass(found, ModelConfig):
        return found
    expected = (
        "transformer or a module of twoscale.model that defines a class Config that extends"
        " ModelConfig"
    )
    raise InputError(
        f"config key model.architecture: found {shown(architecture)}, expected {expected}."
    )


def modules_of_model(config: Config) -> list[str]:
    """Modules that jobs import by their names, and only for such a model: its architecture, and the
    importer.
    """
    architecture, source = config.model.architecture, config.model.source
    own = [f"twoscale.model.{architecture}"] if architecture != "transformer" else []
    return own + ([IMPORTERS[source]] if source in IMPORTERS else [])


# --- runs ---


def runs(config: Mapping[str, Any]) -> dict[str, Config]:
    """Run name -> Config: the run that `run` names, then the same under further seeds, then those
    of `runs`.

    The run NAME under another seed S is NAME-seedS. `runs` maps names to overrides.
    """
    for key in ("preset", "run"):
        if key in config and type(config[key]) not in (str, int, float):
            raise InputError(
                f"config key {key}: found {shown(config[key])}, expected a name, such as {key}:"
                f" demo."
            )
    merged = _chosen(config)
    unnamed = "published" if _has_own_base(config) else config.get("preset", DEFAULT_PRESET)
    selected = str(config.get("run", unnamed))
    _check_name("run", selected)
    configs = _under_seeds(selected, merged)
    taken = set(configs)
    for run, overrides in _mapping("runs", config.get("runs")).items():
        _check_name("runs", str(run))
        if run in taken:
            raise InputError(
                f"config key runs: found {run!r}, the name of the selected run or of one under"
                f" another seed, expected "
                "another name; keys of the selected run are set at the top level."
            )
        values = _mapping(f"runs.{run}", overrides)
        with _named(f"run {run} (runs.{run})"):
            configs[str(run)] = checked(_overlaid(merged, values))
    return configs


def _check_name(key: str, run: str) -> None:
    if not re.fullmatch(FILE_NAME, run) or len(run) > LONGEST_NAME or run.lower() in NO_NAMES:
        expected = (
            f"at most {LONGEST_NAME} letters, digits, '.', '_' and '-', and none of"
            f" {', '.join(NO_NAMES)}"
        )
        raise InputError(f"config key {key}: found {shown(run)}, expected {expected}.")
    sweeps = [name for name, section in SECTIONS.items() if "overrides" in section.model_fields]
    if run in (*RESERVED, *sweeps):
        raise InputError(
            f"config key {key}: found {run!r}, a reserved folder of results/, expected another"
            f" name."
        )


@contextmanager
def _named(run: str) -> Iterator[None]:
    """Begin the sentence of an InputError with the run that it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{run}: {error}") from error


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, an empty one for null."""
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"config key {key}: found {shown(value)}, expected a section of keys.")
    return value or {}


def _under_seeds(run: str, merged: Mapping[str, Any]) -> dict[str, Config]:
    """A run with all its layers merged, and the same under each further seed."""
    first = checked(merged)
    further = (seed for seed in first.seeds if seed != first.seed)
    return {run: first} | {
        f"{run}-seed{seed}": checked({**merged, "seed": seed}) for seed in further
    }


def studies(config: Mapping[str, Any]) -> dict[str, Config]:
    """Run name -> Config of all studies with runs: the selected run with some sections overridden,
    under every seed.

    Such a study has a function `runs`: selected run -> sweep -> overrides by name. A sweep is also
    a section, with `overrides` of all its runs. Names are <sweep>/<name>, and
    <sweep>/<name>-seed<seed> under another seed than `seed`. The overrides of a run take precedence
    over those of its sweep, and these over all other layers. A published model, which is not
    trained here, has none.
    """
    merged = _chosen(config)
    selected = checked(merged)
    if selected.model.source == "published":
        return {}
    found: dict[str, Config] = {}
    for part in study_parts().values():
        for sweep, named in part.runs(selected).items() if hasattr(part, "runs") else ():
            base = merge(merged, getattr(selected, sweep).overrides)
            for name, overrides in named.items():
                with _named(f"run {sweep}/{name} ({sweep}.overrides)"):
                    found |= _under_seeds(f"{sweep}/{name}", merge(base, overrides))
    return found


# --- slices ---


class ConfigSlice:
    """Part of a config, as a job gets it: some sections and some plain values (seed, device, …) as
    attributes.

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
            raise AttributeError(
                f"this config slice has no {name!r}, only {', '.join(values) or 'nothing'}"
            )
        self.__dict__[name] = value = _section(name, values[name])
        return value


def _section(name: str, values: Any) -> Any:
    """The section object of a section's dict; any other value as it is."""
    if name not in SECTIONS or not isinstance(values, Mapping):
        return values
    section = (
        model_config_class(values.get("architecture", "transformer"))
        if name == "model"
        else SECTIONS[name]
    )
    missing = [
        key
        for key, field in section.model_fields.items()
        if key not in values and not is_optional(field)
    ]
    if missing:
        raise InputError(
            f"config key {name}: found no {', '.join(missing)}, expected all keys of the section."
        )
    return build(section, values, name)
