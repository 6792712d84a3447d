"""Measure docs/jacobians/radii.parquet and write docs/jacobians.md from it.

    python -m tests.studies.spectrum.jacobians                     # maps of known radius, seconds
    python -m tests.studies.spectrum.jacobians --weights FOLDER    # trained loops as well, see `zoo.zoo_maps`
    python -m tests.studies.spectrum.jacobians --weights FOLDER --maps sudoku
    python -m tests.studies.spectrum.jacobians --maps              # the page only

Rows of maps that are not measured are kept.
"""

import argparse
from itertools import chain
from pathlib import Path

import pandas as pd

from tests.studies.spectrum.jacobians.maps import known_maps
from tests.studies.spectrum.jacobians.page import PAGE, RADII, page
from tests.studies.spectrum.jacobians.recipes import measure
from tests.studies.spectrum.jacobians.zoo import zoo_maps
from twoscale.base import replacing


def main(weights: Path | None, names: list[str] | None) -> None:
    radii = pd.read_parquet(RADII) if RADII.exists() else pd.DataFrame(columns=["map", "loops"])
    for of in chain(known_maps(), zoo_maps(weights) if weights else ()):
        if names is None or of.name in names:
            print(f"{of.name}, k = {of.loops}", flush=True)
            others = radii[(radii["map"] != of.name) | (radii["loops"] != of.loops)]
            radii = pd.concat([rows for rows in (others, pd.DataFrame(measure(of))) if len(rows)], ignore_index=True)
            with replacing(RADII) as temporary:
                radii.to_parquet(temporary, index=False)
    with replacing(PAGE) as temporary:
        temporary.write_text(page(radii), encoding="utf-8")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--weights", type=Path, help="folder with weights of trained loops")
    options.add_argument("--maps", nargs="*", help="names of the maps to measure, by default all")
    arguments = options.parse_args()
    main(arguments.weights, arguments.maps)
