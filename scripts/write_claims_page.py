"""Rule write_claims_page: the verdicts on the claims, claims.md, as a web page for the report."""

from twoscale.analysis import pages
from twoscale.files import replacing
from twoscale.jobs import command


def main(arguments) -> None:
    with replacing(arguments.page) as temporary:
        temporary.write_text(pages.from_markdown(arguments.claims.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("claims", "page")))
