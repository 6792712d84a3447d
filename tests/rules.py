"""The rules of the workflow as Snakemake reads them, without a call of Snakemake."""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake.api import SnakemakeApi
from snakemake.rules import Rule
from snakemake.settings.types import ConfigSettings, ResourceSettings
from snakemake.workflow import Workflow

from tests.small import ROOT, of


def rules(**config: Any) -> dict[str, Rule]:
    """Name -> rule for the preset tiny with some keys replaced."""
    return _rules(json.dumps({"preset": "tiny"} | config))


@cache
def _rules(config: str) -> dict[str, Rule]:
    return read_rules(config)


def read_rules(config: str) -> dict[str, Rule]:
    """Name -> rule for a config in JSON."""
    with workflows(config) as (workflow,):
        return {rule.name: rule for rule in workflow.rules}


@contextlib.contextmanager
def workflows(*configs: str, snakefile: Path = ROOT / "Snakefile") -> Iterator[list[Workflow]]:
    """Workflows that one process reads from a Snakefile one after the other, each with a config in
    JSON, while Snakemake's logger is there.
    """
    environment, limit = dict(os.environ), sys.getrecursionlimit()
    with SnakemakeApi() as snakemake, contextlib.chdir(ROOT):
        apis = [
            snakemake.workflow(
                ResourceSettings(cores=2),
                ConfigSettings(config=json.loads(config)),
                snakefile=snakefile,
            )
            for config in configs
        ]
        yield [api._workflow for api in apis]  # which includes the Snakefile
    os.environ.clear()
    os.environ.update(environment)
    sys.setrecursionlimit(limit)


def config_of(name: str, **config: Any) -> dict[str, Any]:
    """The slice of the config that a rule gets, for the selected run."""
    return json.loads(rules(**config)[name].params["config"](of()))


def call_of(rule: Rule) -> list[str]:
    """The script of a rule and its arguments before the options, without the launcher; empty for
    other commands.
    """
    command = dict(rule.params.items()).get("command")
    if command is None:
        return []
    words = shlex.split(command(SimpleNamespace(), output=None))  # of the selected run
    scripts = [number for number, word in enumerate(words) if word.endswith(".py")]
    return words[scripts[-1] :]
