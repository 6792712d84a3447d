"""Rule project_states: the states of one held-out sequence in their principal plane, for Fig. 1."""

from twoscale import tables
from twoscale.analysis.state_paths import read_states, state_paths
from twoscale.jobs import command


def main(arguments) -> None:
    frame = state_paths(read_states(arguments.states), arguments.config.run)
    tables.write("state_paths", frame, arguments.state_paths)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("states", "state_paths")))
