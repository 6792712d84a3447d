"""Rule table_page: one table as a sortable web page for the report."""

from pathlib import Path

from twoscale import command, tables
from twoscale.analysis import pages
from twoscale.files import replacing


def main(arguments):
    name, run = arguments.config["table"], arguments.config["run"]
    frame = tables.read(name, arguments.input).drop(columns="run")
    page = pages.sortable(frame, f"Table {name} of the run {run}")
    with replacing(arguments.output) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--input", type=Path, required=True, help="table, parquet")
    parser.add_argument("--output", type=Path, required=True, help="web page")
    command.run(main, parser)
