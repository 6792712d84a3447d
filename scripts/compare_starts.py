"""Rule compare_starts: settled angles and held-out loss from every start of the projection, as a table and a page."""

import pandas as pd

from twoscale import command, tables
from twoscale.analysis.evidence import Evidence
from twoscale.files import replacing
from twoscale.studies.starts import compare as starts
from twoscale.studies.starts import page as starts_page

EXITS = ("drift_sequences", "exit_quality", "exit_loops", "exit_latency", "check_cost")


def main(arguments) -> None:
    config = arguments.config
    absent = [pd.DataFrame(columns=list(tables.columns(name))) for name in EXITS]
    runs = []
    for run, loops, training in zip(config.runs, arguments.loops, arguments.training, strict=True):
        evidence = Evidence(tables.read("loop_sequences", loops), *absent, max_loops=0, seed=config.seed)
        share = float("nan") if run["share"] is None else run["share"]
        start = (share, run["state_init"], run["sandwich"], run["seed"])
        runs.append(starts.StartRun(*start, evidence, tables.read("training", training)))
    table = starts.compare(runs)
    tables.write("starts", table, arguments.table)
    with replacing(arguments.page) as temporary:
        temporary.write_text(starts_page.page(table, config.run, config.text), encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("table", "page"), lists=("loops", "training")))
