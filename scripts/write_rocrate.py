"""Rule write_rocrate: the run as an RO-Crate, with its code, config, results, and the jobs that made them."""

from twoscale.analysis import crate
from twoscale.config import PROJECT
from twoscale.jobs import command


def main(arguments) -> None:
    crate.write(arguments.crate, arguments.snapshot, PROJECT, arguments.config.snakemake)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("snapshot", "crate")))
