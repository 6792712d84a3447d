"""What a run will take, before it starts: `make plan PRESET=paper`.

Hours are at --tflops sustained tera-FLOP/s, the causal count; they are no claim about a machine.
"""

import argparse
import math
import sys

from twoscale import config
from twoscale.errors import InputError
from twoscale.training import plan as plans


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default=config.DEFAULT_PRESET, help="file of workflow/presets/")
    parser.add_argument("--tflops", type=float, default=100.0, help="sustained tera-FLOP/s (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        if not 0 < arguments.tflops < math.inf:
            raise InputError(f"option --tflops: found {arguments.tflops:g}, expected a finite number > 0.")
        runs = config.runs({"preset": arguments.preset})
    except InputError as error:
        sys.exit(f"error: {error}")
    for name, run in runs.items():
        print(f"run {name}")
        for label, value in plans.plan_rows(plans.plan(run), arguments.tflops):
            print(f"  {label:<46}{value:>16}")


if __name__ == "__main__":
    main()
