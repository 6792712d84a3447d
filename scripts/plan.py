"""What a run will take, before it starts: `make plan PRESET=paper`.

Hours are at --tflops sustained tera-FLOP/s, the causal count, and for a published model, where tokens are read one by
one, at --bandwidth GB/s from memory; they are no claim about a machine.
"""

import argparse
import sys
from pathlib import Path

import yaml

from twoscale import config
from twoscale.errors import InputError
from twoscale.model.published.layer import folder_layer
from twoscale.training import plan as plans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=config.DEFAULT_PRESET, help="file of workflow/presets/")
    parser.add_argument("--configfile", type=Path, help="your configuration")
    for rate, default, unit in (("tflops", 100.0, "tera-FLOP/s"), ("bandwidth", 1000.0, "GB/s")):
        parser.add_argument(f"--{rate}", type=float, default=default, help=f"sustained {unit} (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        rates = plans.Rates(arguments.tflops, arguments.bandwidth)
        mine = yaml.safe_load(arguments.configfile.read_text()) if arguments.configfile else {}
        runs = config.runs({"preset": arguments.preset, **mine}, folder_layer)
    except InputError as error:
        sys.exit(f"error: {error}")
    for name, run in runs.items():
        print(f"run {name}")
        for label, value in plans.rows(run, rates):
            print(f"  {label:<46}{value:>16}")


if __name__ == "__main__":
    main()
