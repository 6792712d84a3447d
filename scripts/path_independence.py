"""Rule path_independence: what other noise changes in the last states and the predictions, over training."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import path_independence


def main(arguments):
    chosen = arguments.config
    independence = tables.read("path_independence", arguments.independence)
    figure = path_independence.draw(independence, chosen["budget"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--independence", required=True, help="table path_independence")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
