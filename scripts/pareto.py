"""Rule pareto: quality of every exit rule against latency and against loops."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import pareto


def main(arguments):
    chosen = arguments.config
    latency = tables.read("exit_latency", arguments.latency)
    quality = tables.read("exit_quality", arguments.quality)
    reference = tables.read("uniform_loops", arguments.reference)
    figure = pareto.draw(latency, quality, reference, chosen["budget"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--latency", required=True, help="table exit_latency on the dense grid")
    parser.add_argument("--quality", required=True, help="table exit_quality on the dense grid")
    parser.add_argument("--reference", required=True, help="table uniform_loops")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
