"""Rules plot_*: draw a figure from its tables with the function `draw` of the module with this dotted name."""

import sys
from functools import partial

from twoscale.figures import drawing, style
from twoscale.jobs import command


def main(module, arguments):
    config = arguments.config
    inputs = {table: getattr(arguments, table) for table in drawing.inputs_of(module)}
    context = style.FigureContext(config.run, config.text, config.loops, published=config.published)
    figure = drawing.draw(module, inputs, config.runs, **config.values, context=context)
    for path in (arguments.figure, arguments.picture):
        style.save(figure, path)


if __name__ == "__main__":
    module = sys.argv.pop(1)
    command.run(
        partial(main, module), command.parser(__doc__, files=("figure", "picture"), lists=drawing.inputs_of(module))
    )
