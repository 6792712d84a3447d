"""Tables, figures and claims of recorded states, or their depth card, docs/recorder.md.

python scripts/measure_recorded.py results/mine            # what a Recorder wrote into this folder
python scripts/measure_recorded.py results/mine --card --unlooped results/control --text FineWeb
"""

import argparse
from pathlib import Path

from twoscale.jobs import command
from twoscale.recorder.run import TEXT, TOLERANCE, draw_run, write_card


def main(arguments) -> None:
    folder, text = arguments.folder, arguments.text
    if arguments.card:
        written = write_card(
            folder, text, arguments.unlooped, arguments.iteration, arguments.tolerance
        )
    else:
        written = draw_run(folder, text, arguments.reading)
    for path in written:
        print(path)


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "folder", type=Path, help="folder of the run; its name is the name of the run"
    )
    options.add_argument(
        "--text", default=TEXT, help="name of the text, for the footer of the figures"
    )
    options.add_argument(
        "--reading", choices=["state", "direction"], default="state", help="steps of Figs. 3 and 5"
    )
    card = options.add_argument_group("the depth card")
    card.add_argument(
        "--card", action="store_true", help="write depth-card.md into the folder, and no figures"
    )
    card.add_argument(
        "--unlooped",
        type=Path,
        help="folder of a recorded model without loops, on the same sequences",
    )
    card.add_argument(
        "--iteration", type=int, help="training iteration of the weights (default: the last one)"
    )
    card.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        help="tolerance of the plateau, in nats per token",
    )
    command.run(main, options)
