"""Rule take_snapshot: figures, claims and tables of a run in one folder, with a manifest of what they come from."""

from twoscale import tables
from twoscale.analysis import snapshot
from twoscale.config import PROJECT
from twoscale.jobs import command, machine


def main(arguments) -> None:
    training = snapshot.training(tables.read("training", arguments.training), arguments.segments)
    facts = {
        "run": arguments.config.run,
        **snapshot.checkout(PROJECT),
        "text": snapshot.text(arguments.tokens),
        "config": arguments.config.plain,
        "versions": snapshot.versions(),
        "machine": machine.description(),
        "training": training,
        "jobs": snapshot.jobs(arguments.benchmarks.glob("*.tsv")),
    }
    snapshot.write(arguments.snapshot, {*arguments.results, arguments.training}, arguments.snapshot.parent, facts)


if __name__ == "__main__":
    files = ("training", "tokens", "benchmarks", "snapshot")  # the last two are folders
    command.run(main, command.parser(__doc__, files=files, lists=("segments", "results")))
