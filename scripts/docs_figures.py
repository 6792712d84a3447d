"""Draws the figures in docs/ again from the tables of one run, each in the format it has there."""

import argparse
from pathlib import Path

from twoscale.base import InputError
from twoscale.config import Config, checked, preset, text_label
from twoscale.figures import style
from twoscale.figures.catalogue import Figure, figures
from twoscale.jobs import command


def redraw(figure: Figure, config: Config, run: Path, picture: Path) -> None:
    """Write `picture` from the tables in the folder `run`."""
    draw = command.function(figure.function)
    inputs = {table: [run / file] for table, file in figure.inputs.items()}
    context = style.FigureContext(run.name, text_label(config.data), figure.loops(config))
    values = figure.values(config)
    drawn = style.draw_files(draw, inputs, [run.name], **values, context=context)
    with style.look():
        drawn.savefig(picture, dpi=150, metadata=style.DATE[picture.suffix[1:]])


def main(arguments) -> None:
    run, docs, config = arguments.run, arguments.docs, checked(preset("demo"))
    if not (run / "tables").is_dir() or not docs.is_dir():
        found = "found no tables/ or no folder, expected a finished run and a folder"
        raise InputError(f"{run}, {docs}: {found}.")
    for figure in figures():
        if figure.study and not figure.compared:
            continue  # of several runs
        missing = [file for file in figure.inputs.values() if not (run / file).is_file()]
        for picture in (*docs.glob(f"{figure.name}.svg"), *docs.glob(f"{figure.name}.png")):
            if missing:
                print(f"{picture}: kept, because {run / missing[0]} is missing")
                continue
            redraw(figure, config, run, picture)
            print(f"{picture}: drawn")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    run = Path("results/demo")
    parser.add_argument("run", type=Path, nargs="?", default=run, help="a run of the demo")
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    command.run(main, parser)
