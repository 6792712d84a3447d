"""Rules plot_*: draw the figure of this name from its tables, with the function `draw` of twoscale.figures.<name>."""

import inspect
import sys
from functools import partial
from importlib import import_module

import pandas as pd

from twoscale import command, tables
from twoscale.figures import style


def tables_of(draw):
    """Names of the tables that a function `draw` takes: its parameters before the keyword-only ones."""
    parameters = inspect.signature(draw).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def read_table(name, paths, runs):
    """One table from the files of several runs, each row with its run."""
    frames = [tables.read(name, path).assign(run=run) for path, run in zip(paths, runs, strict=True)]
    return pd.concat(frames, ignore_index=True)


def main(module, arguments):
    config = arguments.config
    inputs = {name: getattr(arguments, name) for name in tables_of(module.draw)}
    if hasattr(module, "read"):  # a figure of other files than tables
        content = module.read(**inputs)
    else:
        content = {name: read_table(name, paths, config.runs) for name, paths in inputs.items()}
    context = style.FigureContext(config.run, config.text, config.loops, config.published)
    style.save(module.draw(**content, **config.values, context=context), arguments.figure)


if __name__ == "__main__":
    module = import_module(f"twoscale.figures.{sys.argv.pop(1)}")
    command.run(partial(main, module), command.parser(__doc__, files=("figure",), lists=tables_of(module.draw)))
