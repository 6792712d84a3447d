"""Rule write_table_page: one table as a sortable web page for the report."""

from twoscale import command, tables
from twoscale.analysis import pages
from twoscale.files import replacing


def main(arguments) -> None:
    name, run = arguments.config.table, arguments.config.run
    frame = tables.read(name, arguments.table).drop(columns="run")
    page = pages.sortable(frame, f"Table {name} of the run {run}")
    with replacing(arguments.page) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("table", "page")))
