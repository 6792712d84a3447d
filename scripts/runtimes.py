"""Rule runtimes: what each rule of a run took, from the files that Snakemake keeps, as a web page."""

from pathlib import Path

from twoscale import command
from twoscale.analysis import pages
from twoscale.files import replacing


def main(arguments):
    measured = pages.runtimes(arguments.benchmarks.glob("*.tsv"))
    page = pages.sortable(measured, f"Runtime and memory per rule of the run {arguments.config['run']}")
    with replacing(arguments.output) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    parser = command.parser(__doc__)
    parser.add_argument("--benchmarks", type=Path, required=True, help="folder of benchmark files")
    parser.add_argument("--output", type=Path, required=True, help="web page")
    command.run(main, parser)
