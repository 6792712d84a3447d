"""make gpu-paper: train a preset for some minutes from its last state, without Snakemake. See docs/gpu.md."""

import argparse
import sys

from twoscale.gpu.packages import TRAINING, missing_packages


def main() -> None:
    from twoscale import command
    from twoscale.gpu.pieces import train_preset

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper", help="file of workflow/presets/, and folder under results/")
    parser.add_argument("--minutes", type=float, required=True, help="time after which the state is saved")
    command.run(lambda arguments: print(train_preset(arguments.preset, 60 * arguments.minutes)), parser)


if __name__ == "__main__":
    if sentence := missing_packages(TRAINING):
        sys.exit(sentence)
    main()
