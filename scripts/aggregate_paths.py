"""Rule aggregate_paths: shares of the path_types of trajectories, statistics of whole paths and of path independence."""

from twoscale.analysis import aggregate
from twoscale import command, tables


def main(arguments):
    run = arguments.config["run"]
    tables.write("path_types", aggregate.path_types(arguments.paths, run), arguments.output_kinds)
    tables.write("path_metrics", aggregate.path_metrics(arguments.paths, run), arguments.output_metrics)
    independence = aggregate.path_independence(arguments.independence, run)
    tables.write("path_independence", independence, arguments.output_independence)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--paths", nargs="+", required=True, help="parquet, one file per checkpoint")
    parser.add_argument("--independence", nargs="+", required=True, help="parquet, one file per checkpoint")
    parser.add_argument("--output-path_types", required=True, help="table path_types")
    parser.add_argument("--output-metrics", required=True, help="table path_metrics")
    parser.add_argument("--output-independence", required=True, help="table path_independence")
    command.run(main, parser)
