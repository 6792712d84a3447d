"""make gpu-pack, and what its script does on a machine with a GPU: run, status, collect. See docs/gpu.md."""

import argparse
import sys
from pathlib import Path

from twoscale.gpu.packages import CHECK, missing_packages

PACKAGES = CHECK | {name: name for name in ("pandas", "seaborn", "snakemake", "tokenizers")}


def main() -> None:
    from twoscale.gpu import archive, pack, session, status
    from twoscale.jobs import command

    actions = {
        "make": lambda o: pack.make(o.folder, o.preset, o.configfile, o.python),
        "run": lambda o: session.start(session.Session(o.folder), o.minutes, o.device, o.wait),
        "status": lambda o: status.status(session.Session(o.folder)),
        "collect": lambda o: archive.collect(session.Session(o.folder)),
        "work": lambda o: session.work(session.Session(o.folder)),
        "measure": lambda o: session.measure(session.Session(o.folder)),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=actions, help="work and measure are called by run")
    parser.add_argument("--folder", type=Path, default=Path("gpu-pack"), help="folder of the pack")
    parser.add_argument(
        "--preset", default="half-hour", help="make: preset in workflow/presets/, also the name of the run"
    )
    parser.add_argument("--configfile", type=Path, nargs="+", default=[], help="make: files with further config keys")
    parser.add_argument("--python", default="3.12", help="make: version of Python on the other machine")
    parser.add_argument("--minutes", type=float, default=24, help="run: total minutes, including the figures")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="run: overrides compute.device")
    parser.add_argument(
        "--wait", action="store_true", help="run: return only when everything is done (for a batch job)"
    )
    command.run(lambda options: print(actions[options.action](options)), parser)


if __name__ == "__main__":
    if sentence := missing_packages(PACKAGES):
        sys.exit(sentence)
    main()
