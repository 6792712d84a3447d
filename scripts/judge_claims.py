"""Rule judge_claims: a verdict on each claim of the paper, as a table and as a page."""

from twoscale import tables
from twoscale.analysis import claims, claims_page, evidence
from twoscale.files import replacing
from twoscale.jobs import command


def main(arguments) -> None:
    config = arguments.config
    found = evidence.Evidence.read(
        {name: getattr(arguments, name) for name in tables.CLAIM_TABLES},
        max_loops=config.max_loops,
        warmup=config.warmup_iterations,
        seed=config.seed,
        published=config.published,
    )
    verdicts = claims.verdicts(found)
    tables.write("claims", claims.table(verdicts, config.run), arguments.table)
    page = claims_page.page(verdicts, config.run, config.text, found)
    with replacing(arguments.page) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    files = (*tables.CLAIM_TABLES, "table", "page")
    command.run(main, command.parser(__doc__, files=files))
