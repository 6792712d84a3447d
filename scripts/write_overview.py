"""Rule write_overview: verdicts and figures of a run as the first page of the report, and the results for captions."""

import json

from twoscale import command, tables
from twoscale.analysis import overview, pages
from twoscale.files import replacing


def main(arguments) -> None:
    config = arguments.config
    judged = []
    if arguments.claims:
        judged = overview.answers(tables.read("claims", arguments.claims), config.reference_state)
    paths = {name: getattr(arguments, name) for name in overview.NUMBERS}
    measured = {name: tables.read(name, path) for name, path in paths.items() if path}
    pictures = zip(config.report_figures, arguments.pictures, strict=True)
    figures = [overview.Shown(**figure, picture=path) for figure, path in pictures]
    results = {shown.name: overview.sentences(shown, judged, measured) for shown in figures}
    body = overview.body(config.run, config.text, judged, [(shown, results[shown.name]) for shown in figures])
    with replacing(arguments.page) as temporary:
        temporary.write_text(pages.page(f"The run {config.run}", body), encoding="utf-8")
    with replacing(arguments.results) as temporary:
        temporary.write_text(json.dumps(results, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    optional = ("claims", *overview.NUMBERS)
    command.run(main, command.parser(__doc__, ("page", "results"), lists=("pictures",), optional=optional))
