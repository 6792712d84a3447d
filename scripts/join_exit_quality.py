"""Rule join_exit_quality: the tables of quality and loops, from those of every exit criterion in turn."""

import pandas as pd

from twoscale import command, tables


def main(arguments) -> None:
    for name in ("quality", "loops"):
        table = f"exit_{name}"
        parts = [tables.read(table, path) for path in getattr(arguments, f"{name}_files")]
        tables.write(table, pd.concat(parts), getattr(arguments, name))


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("quality", "loops"), lists=("quality_files", "loops_files")))
