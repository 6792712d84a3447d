"""Rule aggregate_metrics: statistics over tokens of all checkpoints, and the training log in one piece."""

from twoscale.analysis import aggregate
from twoscale import command, tables


def main(arguments):
    run = arguments.config["run"]
    tables.write("loop_metrics", aggregate.loop_metrics(arguments.trajectories, run), arguments.output_loops)
    tables.write("drift", aggregate.drift(arguments.drift, run), arguments.output_drift)
    loop_sequences = aggregate.loop_sequences(arguments.trajectories, run)
    tables.write("loop_sequences", loop_sequences, arguments.output_loop_sequences)
    drift_sequences = aggregate.drift_sequences(arguments.drift, run)
    tables.write("drift_sequences", drift_sequences, arguments.output_drift_sequences)
    log = aggregate.training(arguments.training)
    tables.write("training", log, arguments.output_training, tables.groups_of(log, "loops"))


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--trajectories", nargs="+", required=True, help="parquet, one file per checkpoint")
    parser.add_argument("--drift", nargs="+", required=True, help="parquet, one file per checkpoint")
    parser.add_argument("--training", nargs="+", required=True, help="parquet, one file per training segment")
    parser.add_argument("--output-loops", required=True, help="table loop_metrics")
    parser.add_argument("--output-drift", required=True, help="table drift")
    parser.add_argument("--output-loop-sequences", required=True, help="table loop_sequences")
    parser.add_argument("--output-drift-sequences", required=True, help="table drift_sequences")
    parser.add_argument("--output-training", required=True, help="table training")
    command.run(main, parser)
