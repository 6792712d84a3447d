"""A figure from its files: the function `draw` of its module gets its tables by name."""

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from twoscale import tables


def inputs_of(module: str) -> list[str]:
    """Names of the tables that a figure takes: the parameters of `draw` before the keyword-only ones."""
    parameters = inspect.signature(import_module(module).draw).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def draw(module: str, inputs: Mapping[str, Sequence[Path]], runs: Sequence[str], **values: Any) -> Figure:
    """The figure of this name.

    Args:
        module: Dotted name of its module.
        inputs: Table -> its files, one per run.
        runs: The runs; each row of a table gets the name of its run.
        values: Keyword-only arguments of the figure's function, such as `context`.
    """
    content = {table: _read(table, paths, runs) for table, paths in inputs.items()}
    return import_module(module).draw(**content, **values)


def _read(table: str, paths: Sequence[Path], runs: Sequence[str]) -> pd.DataFrame:
    """One table from the files of several runs, each row with its run."""
    frames = [tables.read(table, path).assign(run=run) for path, run in zip(paths, runs, strict=True)]
    return pd.concat(frames, ignore_index=True)
