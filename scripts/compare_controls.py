"""Rule compare_controls: the looped model beside models without loops, as a table and as a page."""

from twoscale import command, tables
from twoscale.files import replacing
from twoscale.studies.baselines import compare as controls


def main(arguments) -> None:
    config = arguments.config
    table = controls.compare(config.compared, arguments.quality, config.run, config.seed)
    tables.write("controls", table, arguments.controls)
    with replacing(arguments.page) as temporary:
        temporary.write_text(controls.page(table, config.page), encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("controls", "page"), lists=("quality",)))
