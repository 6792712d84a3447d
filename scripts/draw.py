"""Rules plot_*: draw the figure of this name from its tables, with the function `draw` of twoscale.figures.<name>."""

import sys
from functools import partial

from twoscale import command
from twoscale.figures import drawing, style


def main(name, arguments):
    config = arguments.config
    inputs = {table: getattr(arguments, table) for table in drawing.inputs_of(name)}
    context = style.FigureContext(config.run, config.text, config.loops, published=config.published)
    figure = drawing.draw(name, inputs, config.runs, **config.values, context=context)
    for path in (arguments.figure, arguments.picture):
        style.save(figure, path)


if __name__ == "__main__":
    name = sys.argv.pop(1)
    command.run(
        partial(main, name), command.parser(__doc__, files=("figure", "picture"), lists=drawing.inputs_of(name))
    )
