"""What a run will take, before it starts: `make plan PRESET=paper`, `make plan CONFIG=my.yaml`.

The config is that of `snakemake` with the same options: config.yaml, then --configfile, then --config. Hours are at
the sustained rates of the options; the default ones depend on compute.device and are no claim about a machine.
"""

import argparse
from pathlib import Path

from twoscale import config
from twoscale.jobs import command
from twoscale.model.published.layer import folder_layer
from twoscale.workflow import plan as plans

RATES = {"tflops": "tera-FLOP/s of training", "analysis-tflops": "tera-FLOP/s of analyses", "bandwidth": "GB/s"}


def main(arguments: argparse.Namespace) -> None:
    own = config.PROJECT / "config.yaml"
    preset = [f"preset={arguments.preset}", f"run={arguments.preset}"] if arguments.preset else []
    files = ([own] if own.exists() else []) + arguments.configfile
    runs = config.runs(config.user_config(files, [*preset, *arguments.entries]), folder_layer)
    given = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in RATES}
    rates = {name: plans.Rates.of(run.compute.device, **given) for name, run in runs.items()}
    for name, run in runs.items():
        print(f"run {name}")
        for label, value in plans.rows(run, rates[name]):
            print(f"  {label:<48}{value:>16}")
        for note in plans.notes(run):
            print(f"  {note}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", help="preset in workflow/presets/, also the name of the run")
    parser.add_argument("--configfile", type=Path, nargs="+", default=[], help="your config files")
    parser.add_argument(
        "--config", nargs="+", default=[], dest="entries", metavar="KEY=VALUE", help="further config keys"
    )
    for rate, unit in RATES.items():
        parser.add_argument(f"--{rate}", type=float, help=f"sustained {unit}")
    command.run(main, parser)
