"""Rule aggregate_metrics: statistics over tokens of all checkpoints."""

from twoscale import tables
from twoscale.analysis import aggregate
from twoscale.jobs import command

OUTPUTS = ("loop_metrics", "drift", "loop_sequences", "drift_sequences")


def main(arguments) -> None:
    run = arguments.config.run
    frames = {
        "loop_metrics": aggregate.loop_metrics(arguments.trajectories, run),
        "drift": aggregate.drift(arguments.token_drift, run),
        "loop_sequences": aggregate.loop_sequences(arguments.trajectories, run),
        "drift_sequences": aggregate.drift_sequences(arguments.token_drift, run),
    }
    for table, frame in frames.items():
        tables.write(table, frame, getattr(arguments, table))


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=OUTPUTS, lists=("trajectories", "token_drift")))
