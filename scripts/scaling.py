"""Rule scaling: quality at fixed loop counts over training."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import scaling


def main(arguments):
    chosen = arguments.config
    table = tables.read("scaling", arguments.scaling)
    figure = scaling.draw(table, chosen["mean_loops"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--scaling", required=True, help="table scaling")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
