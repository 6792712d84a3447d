"""Rule write_rocrate: the run as an RO-Crate, with its code, config, results, and the jobs that made them."""

from twoscale import command
from twoscale.analysis import crate
from twoscale.config import PROJECT


def main(arguments) -> None:
    crate.write(arguments.crate, arguments.snapshot, PROJECT, arguments.config.snakemake)


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("snapshot", "crate")))
