"""The arena for exits that another program chose: controls, oracle and intervals, without a model.

    python -m twoscale.studies.arena losses.parquet exits.parquet results/mine

losses.parquet has the loss of every token at every depth, exits.parquet the depths at which one or more gates let the
tokens leave (tables "depth_losses" and "gate_exits"; docs/arena.md, "Exits of other programs"). Written are
arena.md, arena.pdf, arena.parquet and convergence.parquet.
"""

import argparse
from pathlib import Path

from twoscale.jobs import command
from twoscale.studies.arena import gates
from twoscale.studies.arena.config import OracleConfig


def main(arguments: argparse.Namespace) -> None:
    print(gates.write(arguments.losses, arguments.exits, arguments.folder, arguments.tolerance))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("losses", type=Path, help="parquet table of losses: document, sequence, position, depth, loss")
    options.add_argument("exits", type=Path, help="parquet table: criterion, threshold, sequence, position, depth")
    options.add_argument("folder", type=Path, help="folder of the results")
    tolerance = OracleConfig().tolerance
    options.add_argument(
        "--tolerance",
        type=float,
        default=tolerance,
        help="tolerance for a converged token, in nats (default: %(default)s)",
    )
    command.run(main, options)
