"""Rule fig5: the cosine between consecutive steps over the whole budget at every checkpoint."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import fig5


def main(arguments):
    chosen = arguments.config
    loops = tables.read("loop_metrics", arguments.loops)
    figure = fig5.draw(loops, chosen["budget"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--loops", required=True, help="table loop_metrics")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
