"""The depth card of a recorded run, docs/recorder.md.

python -m twoscale.recorder card results/mine
python -m twoscale.recorder card results/mine --unlooped results/control --text "FineWeb, validation"
"""

import argparse
from pathlib import Path

from twoscale.jobs import command
from twoscale.recorder.run import TEXT, TOLERANCE, write_card


def main(arguments: argparse.Namespace) -> None:
    options = {name: getattr(arguments, name) for name in ("text", "unlooped", "iteration", "tolerance")}
    for path in write_card(arguments.folder, **options):
        print(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m twoscale.recorder", description=__doc__.partition("\n")[0])
    card = parser.add_subparsers(required=True).add_parser("card", help="write depth-card.md into the folder of a run")
    card.add_argument("folder", type=Path, help="folder of the run; its name is the name of the run")
    card.add_argument("--unlooped", type=Path, help="folder of a recorded model without loops, on the same sequences")
    card.add_argument("--iteration", type=int, help="training iteration of the weights (default: the last one)")
    card.add_argument("--tolerance", type=float, default=TOLERANCE, help="tolerance of the plateau, in nats per token")
    card.add_argument("--text", default=TEXT, help="name of the text")
    command.run(main, parser)
