"""The figures of the studies, drawn from tables with known content: they are the ones that have been looked at."""

import hashlib
import json
import tempfile
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
import pytest

from twoscale.config import PROJECT
from twoscale.figures import style
from twoscale.figures.catalogue import figures

DRAWINGS = {}
for figure in figures():
    if figure.room:
        samples = import_module(f"tests.studies.{figure.room}.samples")
        DRAWINGS |= {figure.name: getattr(samples, figure.name)} | getattr(samples, "FURTHER", {})
GOLDEN = PROJECT / "tests" / "golden" / "figures_of_studies.json"


def digest_of(name, folder):
    style.save(DRAWINGS[name](), folder / "figure.svg")
    return hashlib.sha256((folder / "figure.svg").read_bytes()).hexdigest()[:16]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_figure_is_the_one_that_was_looked_at(name, tmp_path):
    """After a change that is meant: look at the figure, and `python -m tests.studies.test_figures`."""
    golden = json.loads(GOLDEN.read_text())
    if golden["matplotlib"] != mpl.__version__:
        pytest.skip(f"drawn with matplotlib {golden['matplotlib']}")
    assert digest_of(name, tmp_path) == golden[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        digests = {name: digest_of(name, Path(temporary)) for name in DRAWINGS}
    GOLDEN.write_text(json.dumps({"matplotlib": mpl.__version__, **digests}, indent=1) + "\n")
