"""make gpu-pack, and what its script does on a machine with a GPU: run, status, collect. See
docs/gpu.md.
"""

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
    parser.add_argument("action", nargs="+", choices=actions, help="work is called by run")
    parser.add_argument("--folder", type=Path, default=Path("gpu-pack"), help="folder of the pack")
    parser.add_argument("--preset", default="ten-minutes", help="make: preset, and the run's name")
    parser.add_argument(
        "--configfile", type=Path, nargs="+", default=[], help="make: further config files"
    )
    parser.add_argument(
        "--python", default="3.12", help="make: version of Python on the other machine"
    )
    parser.add_argument(
        "--minutes", type=command.positive, default=12.5, help="run: total, with the figures"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="run: overrides compute.device")
    parser.add_argument(
        "--wait", action="store_true", help="run: return when everything is done (batch jobs)"
    )
    parser.add_argument(
        "--to", type=Path, help="collect: folder of the archive, by default that of the pack"
    )
    command.run(
        lambda options: print(*(actions[name](options) for name in options.action), sep="\n"),
        parser,
    )


if __name__ == "__main__":
    if missing := [
        module for module in (*NEEDED.split(), "setuptools") if find_spec(module) is None
    ]:
        sys.exit(
            f"error: Python packages: found no {', '.join(missing)}, expected them; see"
            f" docs/gpu.md."
        )
    main()
