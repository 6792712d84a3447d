"""The layers of the configuration: paper.yaml <- preset <- the user's settings, checked and named.

The Snakefile hands over what Snakemake has merged (config.yaml <- --configfile) and gets settings back.
"""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from twoscale import config
from twoscale.errors import InputError

PROJECT = Path(__file__).resolve().parents[2]
PRESETS = PROJECT / "workflow" / "presets"
SCHEMA = PROJECT / "workflow" / "schemas" / "config.schema.yaml"
DEFAULT_PRESET = "demo"
VARIANT_KEYS = ("sandwich", "adapter_init", "state_init")  # keys of `model` that the readings study combines
RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"  # of a folder, and safe in a shell


def read_yaml(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def preset(name: str) -> dict[str, Any]:
    """Every setting at the values of a preset: paper.yaml with the preset's file over it."""
    known = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    if name not in known:
        raise InputError(f"config key preset: found {name!r}, expected one of {', '.join(known)}.")
    paper = read_yaml(PRESETS / "paper.yaml")
    return paper if name == "paper" else config.merge(paper, read_yaml(PRESETS / f"{name}.yaml"))


def checked(merged: Mapping[str, Any]) -> config.Config:
    """Settings from all layers merged; the first wrong key or value is an InputError."""
    validator = jsonschema.Draft202012Validator(read_yaml(SCHEMA))
    error = jsonschema.exceptions.best_match(validator.iter_errors(merged))
    if error is not None:
        raise InputError(f"config key {_key(error)}: {_complaint(error)}.")
    return config.from_config(merged)


def _key(error: jsonschema.ValidationError) -> str:
    return ".".join(map(str, error.absolute_path)) or "(top level)"


def _complaint(error: jsonschema.ValidationError) -> str:
    """The validator's message, with the known keys where an unknown one was found."""
    if error.validator == "additionalProperties":
        unknown = sorted(set(error.instance) - set(error.schema.get("properties", {})))
        return f"unknown key {', '.join(unknown)}, expected one of {', '.join(error.schema['properties'])}"
    return error.message


def runs(config: Mapping[str, Any]) -> dict[str, config.Config]:
    """Run name -> settings: first the one that `run` names, then those under `runs` (name -> overrides)."""
    merged = _chosen(config)
    layers = {str(config.get("run", config.get("preset", DEFAULT_PRESET))): merged}
    for other, overrides in (config.get("runs") or {}).items():
        layers[str(other)] = config.merge(merged, overrides or {})
    for run in layers:
        if not re.fullmatch(RUN_NAME, run):
            raise InputError(f"config key run: found {run!r}, expected letters, digits, '.', '_' and '-'.")
    return {run: checked(layer) for run, layer in layers.items()}


def readings(config: Mapping[str, Any]) -> dict[str, config.Config]:
    """Run name -> settings of the readings study: the chosen run under each combination of `readings`.

    Names are readings/<sandwich>-<adapter_init>-<state_init>; `variants.overrides` lies over all of them.
    """
    merged = _chosen(config)
    study = checked(merged).readings
    base = config.merge(merged, study.overrides)
    runs = {}
    for values in itertools.product(*(getattr(study, key) for key in READINGS)):
        name = "readings/" + "-".join(values)
        try:
            runs[name] = checked(config.merge(base, {"model": dict(zip(READINGS, values, strict=True))}))
        except InputError as error:
            raise InputError(f"run {name} (variants.overrides): {error}") from error
    return runs


def _chosen(config: Mapping[str, Any]) -> dict[str, Any]:
    """All layers of the chosen run: paper.yaml <- preset <- the user's settings."""
    user = {key: value for key, value in config.items() if key not in ("preset", "run", "runs")}
    return config.merge(preset(config.get("preset", DEFAULT_PRESET)), user)
