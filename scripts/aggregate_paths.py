"""Rule aggregate_paths: shares of path types, and statistics of whole trajectories."""

from twoscale import command, tables
from twoscale.analysis import aggregate


def main(arguments) -> None:
    run = arguments.config.run
    frames = {
        "path_types": aggregate.path_types(arguments.paths, run),
        "path_metrics": aggregate.path_metrics(arguments.paths, run),
    }
    for table, frame in frames.items():
        tables.write(table, frame, getattr(arguments, table))


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("path_types", "path_metrics"), lists=("paths",)))
