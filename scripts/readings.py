"""Rule readings: the geometry of the loops under several readings of the paper, side by side."""

import pandas as pd

from twoscale import command, tables
from twoscale.figures import style
from twoscale.figures import variants


def main(arguments):
    chosen = arguments.config
    readings_of = {run: chosen["readings"][run] for run in arguments.runs}
    loops = pd.concat([tables.read("loop_metrics", path) for path in arguments.loops])
    drift = pd.concat([tables.read("drift", path) for path in arguments.drift])
    logs = [tables.read("training", path) for path in arguments.training]
    training = pd.concat(dict(zip(arguments.runs, logs, strict=True)), names=["run"]).reset_index("run")
    figure = variants.draw(
        loops, drift, training, readings_of, chosen["reading"], chosen["budget"], chosen["run"], chosen["text"]
    )
    style.save(figure, arguments.output)


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--runs", nargs="+", required=True, help="names of the runs, in the order of the files")
    parser.add_argument("--loops", nargs="+", required=True, help="table loop_metrics of each run")
    parser.add_argument("--drift", nargs="+", required=True, help="table drift of each run")
    parser.add_argument("--training", nargs="+", required=True, help="table training of each run")
    parser.add_argument("--output", required=True, help="figure, .pdf or .png")
    command.run(main, parser)
