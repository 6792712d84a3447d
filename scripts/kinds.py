"""Rule path_types: shares of the path_types of trajectories, contraction rate and effective dimension over training."""

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import path_types


def main(arguments):
    chosen = arguments.config
    shares = tables.read("path_types", arguments.path_types)
    metrics = tables.read("path_metrics", arguments.metrics)
    style.save(path_types.draw(shares, metrics, chosen["budget"], chosen["run"], chosen["text"]), arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--path_types", required=True, help="table path_types")
    parser.add_argument("--metrics", required=True, help="table path_metrics")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
