"""Tables of the study with known content, and its figure of them."""

from tests.figures import RUN, quantile_table
from twoscale.studies.path_independence import figure


def draw(groups=("4", "5-6", "all"), **changes):
    table = quantile_table(figure.LABELS, groups)
    return figure.draw(table.assign(**changes), dtype="float64", **RUN)


def path_independence():
    return draw(q05=0.0)
