"""Tables of the study with known content, and its figures of them."""

import pandas as pd

from tests.figures import ITERATIONS, RUN, quantile_table
from twoscale.studies.paths import draw


def types_table(groups=("4", "5-6")):
    shares = [
        ("converging", 0, 0.4),
        ("orbiting", 2, 0.3),
        ("orbiting", 5, 0.1),
        ("orbiting", 3, 0.1),
    ]
    rows = [
        (iteration, group, *part)
        for iteration in ITERATIONS
        for group in groups
        for part in [*shares, ("undecided", 0, 0.1)]
    ]
    return pd.DataFrame(rows, columns=["iteration", "group", "path_type", "period", "share"])


def draw_types(types=None, metrics=None):
    types = types_table() if types is None else types
    return draw.draw_path_types(
        types, quantile_table(draw.PATH_ROWS) if metrics is None else metrics, **RUN
    )


def draw_independence(groups=("4", "5-6", "all"), **changes):
    table = quantile_table(draw.EFFECTS, groups)
    return draw.draw_path_independence(table.assign(**changes), dtype="float64", **RUN)


def path_types():
    return draw_types()


def path_independence():
    return draw_independence(q05=0.0)


def one_checkpoint():
    types, metrics = types_table(("4",)), quantile_table(draw.PATH_ROWS, ("4",))
    return draw_types(*(table[table["iteration"] == 600] for table in (types, metrics)))


FURTHER = {
    "path_types, all converge": lambda: draw_types(
        types_table().query("path_type == 'converging'").assign(share=1.0)
    ),
    "path_types, one checkpoint": one_checkpoint,
    "path_independence, no rounding": draw_independence,
}
