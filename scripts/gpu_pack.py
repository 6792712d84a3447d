"""make gpu-pack, and its script on a machine with a GPU: run, status, collect (docs/gpu.md)."""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

NEEDED = (
    "torch numpy pandas pyarrow pydantic yaml safetensors seaborn tokenizers tqdm snakemake"
    " pytest hypothesis"
)


def main() -> None:
    from twoscale.config import user_config
    from twoscale.jobs import command
    from twoscale.workflow import pack, session

    actions = {
        "make": lambda o: pack.make(o.folder, user_config(o.configfile, preset=o.preset), o.python),
        "run": lambda o: session.start(session.Session(o.folder), o.minutes, o.device, o.wait),
        "status": lambda o: session.status(session.Session(o.folder)),
        "collect": lambda o: session.collect(session.Session(o.folder), o.to or o.folder),
        "work": lambda o: session.work(session.Session(o.folder)),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("action", nargs="+", choices=actions, help="work is called by run")
    add("--folder", type=Path, default=Path("gpu-pack"), help="folder of the pack")
    add("--preset", default="ten-minutes", help="make: preset, and the run's name")
    add("--configfile", type=Path, nargs="+", default=[], help="make: further config files")
    add("--python", default="3.12", help="make: version of Python on the other machine")
    add("--minutes", type=command.positive, default=12.5, help="run: total, with the figures")
    add("--device", choices=("cpu", "cuda"), help="run: overrides compute.device")
    add("--wait", action="store_true", help="run: return when everything is done (batch jobs)")
    add("--to", type=Path, help="collect: folder of the archive, by default that of the pack")

    def run(options: argparse.Namespace) -> None:
        print(*(actions[name](options) for name in options.action), sep="\n")

    command.run(run, parser)


if __name__ == "__main__":
    missing = [name for name in (*NEEDED.split(), "setuptools") if find_spec(name) is None]
    if missing:
        found = f"found no {', '.join(missing)}"
        sys.exit(f"error: Python packages: {found}, expected them; see docs/gpu.md.")
    main()
