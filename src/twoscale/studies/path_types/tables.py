"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import STATISTICS, Column, table

TABLES: dict[str, dict[str, Column]] = {
    "path_types": table(
        "run iteration group path_type period tokens",
        share=("float64", "share of the tokens at this iteration and in this group"),
    ),
    "path_metrics": table("run iteration group measure", **STATISTICS),
}
