"""Rule aggregate_scaling: quality at fixed loop counts of all checkpoints, with intervals over sequences."""

from twoscale import command, tables
from twoscale.analysis import summaries


def main(arguments):
    chosen = arguments.config
    scaling = summaries.summarise_scaling(arguments.quality, chosen["run"], chosen["seed"])
    tables.write("scaling", scaling, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--quality", nargs="+", required=True, help="table scaling_quality, one file per checkpoint")
    parser.add_argument("--output", required=True, help="table scaling")
    command.run(main, parser)
