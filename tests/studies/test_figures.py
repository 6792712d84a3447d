"""The figures of the studies, drawn from tables with known content: they are the ones that have
been looked at.
"""

from importlib import import_module

import pytest

from tests.figures import Drawings
from twoscale.figures.catalogue import figures

DRAWINGS = {}
for figure in figures():
    if figure.study_folder:
        samples = import_module(f"tests.studies.{figure.study_folder}.samples")
        DRAWINGS |= {figure.name: getattr(samples, figure.name)} | getattr(samples, "FURTHER", {})
GOLDEN = Drawings("figures_of_studies.json")


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_is_the_one_that_was_looked_at(name, tmp_path):
    """After a change that is meant: look at the figure, and `python -m
    tests.studies.test_figures`.
    """
    GOLDEN.check(name, DRAWINGS[name](), tmp_path)


if __name__ == "__main__":
    GOLDEN.write({name: draw() for name, draw in DRAWINGS.items()})
