"""Rule aggregate_training: the training logs of all segments joined."""

from twoscale import tables
from twoscale.analysis import aggregate
from twoscale.jobs import command


def main(arguments) -> None:
    tables.write("training", aggregate.training(arguments.logs), arguments.training)
    tables.write("training_loops", aggregate.training_loops(arguments.loops), arguments.training_loops)


if __name__ == "__main__":
    parser = command.parser(__doc__, files=("training", "training_loops"), lists=("logs", "loops"))
    command.run(main, parser)
