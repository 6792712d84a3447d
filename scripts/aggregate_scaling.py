"""Rule aggregate_scaling: quality at fixed loop counts of all checkpoints, with intervals over sequences."""

from twoscale import command, tables
from twoscale.analysis.summaries import summarise_scaling


def main(arguments) -> None:
    config = arguments.config
    tables.write("scaling", summarise_scaling(arguments.quality, config.run, config.seed), arguments.scaling)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("scaling",), lists=("quality",)))
