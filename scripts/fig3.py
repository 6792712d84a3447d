"""Rule fig3: step norms and step angles of the first loop steps at every checkpoint."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import fig3


def main(arguments):
    chosen = arguments.config
    loops = tables.read("loop_metrics", arguments.loops)
    figure = fig3.draw(loops, chosen["budget"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--loops", required=True, help="table loop_metrics")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
