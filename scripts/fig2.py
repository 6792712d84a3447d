"""Rule fig2: the drift-to-loop ratio at each boundary between groups over training."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import fig2


def main(arguments):
    chosen = arguments.config
    drift = tables.read("drift", arguments.drift)
    figure = fig2.draw(drift, chosen["reading"], chosen["budget"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--drift", required=True, help="table drift")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
