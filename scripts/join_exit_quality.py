"""Rule join_exit_quality: the tables of quality, loops and controls, from those of every exit criterion in turn."""

import pandas as pd

from twoscale import tables
from twoscale.jobs import command

NAMES = ("quality", "loops", "controls")


def main(arguments) -> None:
    for name in NAMES:
        table = f"exit_{name}"
        parts = [tables.read(table, path) for path in getattr(arguments, f"{name}_files")]
        tables.write(table, pd.concat(parts), getattr(arguments, name))


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=NAMES, lists=[f"{name}_files" for name in NAMES]))
