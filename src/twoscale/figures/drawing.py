"""A figure from its files: the function that draws it gets its tables by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from twoscale import tables


def inputs_of(function: Callable[..., Figure]) -> list[str]:
    """Names of the tables that a figure takes: the parameters before the keyword-only ones."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def draw(
    function: Callable[..., Figure], inputs: Mapping[str, Sequence[Path]], runs: Sequence[str], **values: Any
) -> Figure:
    """The figure that a function draws.

    Args:
        function: It takes tables, then `values` as keyword-only arguments.
        inputs: Table -> its files, one per run; each row gets the name of its run.
        runs: The runs.
        values: Such as `context`.
    """
    content = {}
    for table, paths in inputs.items():
        frames = [tables.read(table, path).assign(run=run) for path, run in zip(paths, runs, strict=True)]
        content[table] = pd.concat(frames, ignore_index=True)
    return function(**content, **values)
