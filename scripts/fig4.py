"""Rule fig4: latency, perplexity and cross-entropy of each exit rule over its threshold."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import fig4


def main(arguments):
    chosen = arguments.config
    latency = tables.read("exit_latency", arguments.latency)
    quality = tables.read("exit_quality", arguments.quality)
    figure = fig4.draw(latency, quality, chosen["budget"], chosen["run"], chosen["text"])
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--latency", required=True, help="table exit_latency")
    parser.add_argument("--quality", required=True, help="table exit_quality")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
