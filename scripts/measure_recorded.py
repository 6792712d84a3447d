"""Tables, figures and claims of recorded states, docs/recorder.md.

    python scripts/measure_recorded.py results/mine                         # what a Recorder wrote into this folder
    python scripts/measure_recorded.py results/mine --states mine.safetensors --iteration 1000

With --states the tables are measured first, on the tensors states/GROUP (K + 1, sequences, tokens, channels) of a
safetensors file.
"""

import argparse
from pathlib import Path

from twoscale.base import InputError
from twoscale.jobs import command
from twoscale.recorder.recorded import measure_saved
from twoscale.recorder.run import TEXT, draw_run


def main(arguments) -> None:
    if arguments.states is not None and arguments.iteration is None:
        raise InputError(
            "option --iteration: found nothing, but --states requires the training iteration of the weights, or 0 if "
            "untrained."
        )
    if arguments.states is not None:
        measure_saved(arguments.states, arguments.folder, arguments.iteration, arguments.batch_size, arguments.replace)
    for path in draw_run(arguments.folder, arguments.text, arguments.reading):
        print(path)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="folder of the run; its name is the name of the run")
    options.add_argument("--states", type=Path, help="safetensors file of saved states")
    options.add_argument("--iteration", type=int, help="training iteration of the weights, 0 if untrained")
    options.add_argument("--batch-size", type=int, default=4, help="batch size for --states")
    options.add_argument("--replace", action="store_true", help="replace an earlier recording of --states")
    options.add_argument("--text", default=TEXT, help="name of the text, for the footer of the figures")
    options.add_argument("--reading", choices=["state", "direction"], default="state", help="steps of Figs. 3 and 5")
    command.run(main, options)
