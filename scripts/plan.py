"""What a run will take, before it starts: `make plan PRESET=paper`, `make plan CONFIG=my.yaml`.

The config is that of `snakemake` with the same options: config.yaml, then --configfile, then
--config. Hours are at rates that depend on compute.device and are no claim about a machine.
"""

import argparse
from pathlib import Path

from twoscale import config
from twoscale.jobs import command
from twoscale.workflow import plan


def main(arguments: argparse.Namespace) -> None:
    runs = config.runs(
        config.user_config(arguments.configfile, arguments.entries, arguments.preset)
    )
    lines = {name: plan.rows(run, arguments.tflops) for name, run in runs.items()}
    for name, run in runs.items():
        print(f"run {name}")
        for label, value in lines[name]:
            print(f"  {label:<48}{value:>16}")
        for note in plan.notes(run):
            print(f"  {note}")


if __name__ == "__main__":
    parser = command.plain_parser(__doc__)
    parser.add_argument("--preset", help="preset in workflow/presets/, also the name of the run")
    parser.add_argument("--configfile", type=Path, nargs="+", default=[], help="your config files")
    entries = {"nargs": "+", "default": [], "dest": "entries", "metavar": "KEY=VALUE"}
    parser.add_argument("--config", **entries, help="further config keys")
    parser.add_argument("--tflops", type=command.positive, help="sustained tera-FLOP/s of training")
    command.run(main, parser)
