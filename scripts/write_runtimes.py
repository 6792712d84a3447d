"""Rule write_runtimes: time and memory of each rule of a run, from Snakemake's benchmark files, as a web page."""

from twoscale.analysis import pages
from twoscale.files import replacing
from twoscale.jobs import command


def main(arguments) -> None:
    runtimes = pages.runtimes(arguments.benchmarks.glob("*.tsv"))
    page = pages.sortable(runtimes, f"Runtime and memory per rule of the run {arguments.config.run}")
    with replacing(arguments.page) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("benchmarks", "page")))  # benchmarks: a folder
