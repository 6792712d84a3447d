"""make gpu-paper: train a preset for some minutes from its last state, without Snakemake."""

import argparse

from twoscale import command
from twoscale.gpu.pieces import train_preset


def main(arguments) -> None:
    print(train_preset(arguments.preset, 60 * arguments.minutes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper", help="file of workflow/presets/, and folder under results/")
    parser.add_argument("--minutes", type=float, required=True, help="time after which the state is saved")
    command.run(main, parser)
