"""Rules plot_*: draw the figure of this name from its tables, with the function `draw` of twoscale.figures.<name>."""

import inspect
import sys
from importlib import import_module

import pandas as pd
from twoscale import command, tables
from twoscale.figures import style


def tables_of(draw):
    """Names of the tables that a function `draw` takes: its parameters before the keyword-only ones."""
    parameters = inspect.signature(draw).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def read(name, paths, runs):
    """One table from the files of several runs, each row with its run."""
    frames = [tables.read(name, path).assign(run=run) for path, run in zip(paths, runs, strict=True)]
    return pd.concat(frames, ignore_index=True)


def main(arguments):
    config = arguments.config
    inputs = {name: getattr(arguments, name) for name in tables_of(figure.draw)}
    # a figure of something other than tables reads its own files
    content = (
        figure.read(**inputs)
        if hasattr(figure, "read")
        else {name: read(name, paths, config.runs) for name, paths in inputs.items()}
    )
    context = style.FigureContext(config.run, config.text, config.loops)
    style.save(figure.draw(**content, **config.values, context=context), arguments.figure)


if __name__ == "__main__":
    figure = import_module(f"twoscale.figures.{sys.argv.pop(1)}")
    command.run(main, command.parser(__doc__, files=("figure",), lists=tables_of(figure.draw)))
