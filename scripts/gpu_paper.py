"""make gpu-paper: train a run for some minutes from its last state, without Snakemake. See docs/gpu.md."""

import argparse
import sys
from pathlib import Path

from twoscale.gpu.packages import TRAINING, missing_packages


def main() -> None:
    from twoscale import command, config
    from twoscale.gpu.pieces import train_run

    def run(arguments: argparse.Namespace) -> None:
        chosen = [f"preset={arguments.preset}"] if arguments.preset else []
        print(train_run(config.user_config(arguments.configfile, chosen), 60 * arguments.minutes))

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", help="file of workflow/presets/, by default that of --configfile, or paper")
    parser.add_argument("--configfile", type=Path, nargs="+", default=[], help="your configuration")
    parser.add_argument("--minutes", type=float, required=True, help="time after which the state is saved")
    command.run(run, parser)


if __name__ == "__main__":
    if sentence := missing_packages(TRAINING):
        sys.exit(sentence)
    main()
