"""make gpu-pack, and what its script does on a machine with a GPU: run, status, collect. See docs/gpu.md."""

import argparse
import sys
from pathlib import Path

from twoscale.gpu.packages import CHECK, missing_packages

PACKAGES = CHECK | {"snakemake": "snakemake", "seaborn": "seaborn", "tokenizers": "tokenizers"}


def main() -> None:
    from twoscale import command
    from twoscale.gpu import archive, pack, session, status

    actions = {
        "make": lambda options: pack.make(options.folder, options.preset, options.configfile, options.python),
        "run": lambda options: session.start(session.Session(options.folder), options.minutes, options.device),
        "status": lambda options: status.status(session.Session(options.folder)),
        "collect": lambda options: archive.collect(session.Session(options.folder)),
        "work": lambda options: session.work(session.Session(options.folder)),
        "measure": lambda options: session.measure(session.Session(options.folder)),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=actions, help="work and measure are called by run")
    parser.add_argument("--folder", type=Path, default=Path("gpu-pack"), help="the pack")
    parser.add_argument("--preset", default="half-hour", help="make: file of workflow/presets/, and name of the run")
    parser.add_argument("--configfile", type=Path, nargs="+", default=[], help="make: further keys of the config")
    parser.add_argument("--python", default="3.12", help="make: version of Python on the other machine")
    parser.add_argument("--minutes", type=float, default=25, help="run: whole time, figures included")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="run: in place of compute.device")
    command.run(lambda options: print(actions[options.action](options)), parser)


if __name__ == "__main__":
    if sentence := missing_packages(PACKAGES):
        sys.exit(sentence)
    main()
