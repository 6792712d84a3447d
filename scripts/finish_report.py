"""make report: changes a report.html of Snakemake so that browsers show its large pages and the file is small."""

import argparse
import sys
from pathlib import Path

from twoscale.base import InputError, replacing
from twoscale.report.pages import compress_files


def main(report: Path) -> None:
    text = compress_files(report.read_text(encoding="utf-8"))
    with replacing(report) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="the report.html")
    try:
        main(parser.parse_args().report)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
