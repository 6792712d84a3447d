"""Tables of the study, see `twoscale.tables`."""

from twoscale.tables import Column, table

TABLES: dict[str, dict[str, Column]] = {
    # One row per (checkpoint, fixed loop count), with 95 % intervals over documents.
    "scaling": table(
        "run iteration loops tokens ce ce_low ce_high ppl",
        loops=("int32",),
        ce_low=("float64", "lower end of the 95 % interval of ce"),
        ce_high=("float64", "upper end of the 95 % interval of ce"),
        ppl_low=("float64", "lower end of the 95 % interval of ppl"),
        ppl_high=("float64", "upper end of the 95 % interval of ppl"),
        excess=("float64", "ce minus ce at the largest loop count, on the same sequences"),
        excess_low=("float64", "lower end of the 95 % interval of excess"),
        excess_high=("float64", "upper end of the 95 % interval of excess"),
    ),
}
