"""Rules plot_*: draw a figure from its tables with the function of this dotted path."""

from twoscale.figures import style
from twoscale.jobs import command

if __name__ == "__main__":
    function = command.called()
    names = style.inputs_of(function)

    def main(arguments):
        config = arguments.config
        context = style.FigureContext(
            config.run, config.text, config.loops, published=config.published
        )
        inputs = {table: getattr(arguments, table) for table in names}
        figure = style.draw_files(function, inputs, config.runs, **config.values, context=context)
        for path in (arguments.figure, arguments.picture):
            style.save(figure, path)

    command.run(
        main, command.parser(__doc__, files=("figure", "picture"), lists=names, job_files=())
    )
