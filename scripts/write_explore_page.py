"""Rule write_explore_page: the tables of extract_explore as one interactive page, results/explore.html."""

from twoscale import command, tables
from twoscale.files import replacing
from twoscale.studies.explore import page as explore_page

TABLES = ("tokens", "states", "components", "exits")


def main(arguments) -> None:
    frames = {name: tables.read(f"explore_{name}", getattr(arguments, name)) for name in TABLES}
    template = arguments.template.read_text(encoding="utf-8")
    with replacing(arguments.page) as temporary:
        temporary.write_text(explore_page.page(template, **frames, text=arguments.config.text), encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("template", *TABLES, "page")))
