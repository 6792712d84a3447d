"""make gpu-check: check a machine with a GPU and measure on it, in at most eight minutes. See docs/gpu.md."""

import argparse
import sys
from pathlib import Path

from twoscale.gpu.packages import CHECK, missing_packages


def main() -> None:
    from twoscale.gpu.check import SECTIONS, Options, check
    from twoscale.jobs import command

    def run(arguments: argparse.Namespace) -> None:
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(arguments).items()}
        folder = given.pop("folder")
        failed = check(Options(**given), folder).failed
        print(f"written: {folder}/gpu-check.md, {folder}/gpu-check.parquet")
        if failed:
            sys.exit("\n".join(["gpu-check: these rows failed or were not measured:", *failed]))

    defaults = Options()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=defaults.device)
    parser.add_argument("--model", default=defaults.model, help="preset of the model to measure")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections to measure")
    parser.add_argument(
        "--micro-batches", type=int, nargs="+", default=defaults.micro_batches, help="numbers of sequences"
    )
    parser.add_argument(
        "--iterations", type=int, default=defaults.iterations, help="iterations to measure in each setting"
    )
    parser.add_argument("--folder", type=Path, default=Path("results"), help="folder of the report")
    command.run(run, parser)


if __name__ == "__main__":
    if sentence := missing_packages(CHECK):
        sys.exit(sentence)
    main()
