"""Rule aggregate_independence: statistics of path independence over tokens and draws."""

from twoscale import command, tables
from twoscale.analysis import aggregate


def main(arguments) -> None:
    frame = aggregate.path_independence(arguments.independence, arguments.config.run)
    tables.write("path_independence", frame, arguments.path_independence)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("path_independence",), lists=("independence",)))
