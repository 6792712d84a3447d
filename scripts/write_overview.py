"""Rule write_overview: verdicts and figures of a run as the first page of the report, and the results for captions."""

import json

from twoscale import tables
from twoscale.analysis import overview, pages
from twoscale.files import replacing
from twoscale.jobs import command


def measured(shown, arguments):
    """The sentence on the table of a figure, if it has one."""
    if not shown.sentence:
        return None
    return command.function(shown.sentence)(tables.read(shown.name, *getattr(arguments, shown.name)))


def main(arguments) -> None:
    config = arguments.config
    judged = []
    if "claims" in arguments:
        judged = overview.answers(tables.read("claims", *arguments.claims), config.reference_state)
    pictures = zip(config.report_figures, arguments.pictures, strict=True)
    figures = [overview.Shown(**figure, picture=path) for figure, path in pictures]
    results = {shown.name: overview.sentences(shown, judged, measured(shown, arguments)) for shown in figures}
    body = overview.body(config.run, config.text, judged, [(shown, results[shown.name]) for shown in figures])
    with replacing(*arguments.page) as temporary:
        temporary.write_text(pages.page(f"The run {config.run}", body), encoding="utf-8")
    with replacing(*arguments.results) as temporary:
        temporary.write_text(json.dumps(results, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser_of_options(__doc__)[0])
