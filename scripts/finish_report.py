"""make report: changes a report.html of Snakemake so that browsers show its large pages and the file is small."""

import argparse
from pathlib import Path

from twoscale.base import InputError, first_line, replacing
from twoscale.jobs import command
from twoscale.report.pages import compress_files


def main(arguments) -> None:
    report = arguments.report
    try:
        text = compress_files(report.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise InputError(f"{report}: cannot be read ({first_line(error)}), expected the report.html.") from error
    with replacing(report) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="the report.html")
    command.run(main, parser)
