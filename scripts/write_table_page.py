"""Rule write_table_page: one table as a web page for the report, with the meaning of its columns."""

from twoscale import tables
from twoscale.analysis import pages
from twoscale.files import replacing
from twoscale.jobs import command

NOT_SHOWN = ["run", "statement", "where"]  # the same in many rows; the page of the claims has them


def main(arguments) -> None:
    name, run = arguments.config.table, arguments.config.run
    frame = tables.read(name, arguments.table).drop(columns=NOT_SHOWN, errors="ignore")
    meanings = {column: text for column, text in tables.meanings(name).items() if column in frame}
    page = pages.sortable(frame, f"Table {name} of the run {run}", meanings)
    with replacing(arguments.page) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("table", "page")))
