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
    inputs = {table: [run / file] for table, file in figure.inputs.items()}
    context = style.FigureContext(run.name, text_label(config.data), figure.loops(config))
    drawn = style.draw_files(
        command.function(figure.function),
        inputs,
        [run.name],
        **figure.values(config),
        context=context,
    )
    with style.look():
        drawn.savefig(picture, dpi=150, metadata=style.DATE[picture.suffix[1:]])


def main(arguments) -> None:
    run, docs, config = arguments.run, arguments.docs, checked(preset("demo"))
    if not (run / "tables").is_dir() or not docs.is_dir():
        raise InputError(
            f"{run}, {docs}: found no tables/ or no folder, expected a finished run and a folder."
        )
    for figure in (
        figure for figure in figures() if figure.compared or not figure.study
    ):  # not those of several runs
        missing = [file for file in figure.inputs.values() if not (run / file).is_file()]
        for picture in (
            path for path in docs.glob(f"{figure.name}.*") if path.suffix in (".svg", ".png")
        ):
            if missing:
                print(f"{picture}: kept, because {run / missing[0]} is missing")
            else:
                print(f"{picture}: drawn")
                redraw(figure, config, run, picture)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "run",
        type=Path,
        nargs="?",
        default=Path("results/demo"),
        help="folder of a run of the demo",
    )
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    command.run(main, parser)
