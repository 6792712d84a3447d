"""Rule compare_seeds: the claims over the runs of several seeds, as a table and as a page."""

from twoscale import command, tables
from twoscale.analysis import evidence, seeds
from twoscale.files import replacing
from twoscale.studies.seeds import page as seeds_page


def main(arguments) -> None:
    config = arguments.config
    # one seed for all bootstraps: they draw the same documents
    values = {"max_loops": config.max_loops, "warmup": config.warmup_iterations}
    values |= {"seed": config.seed, "published": config.published}
    files = zip(*(getattr(arguments, name) for name in tables.CLAIM_TABLES), strict=True)
    found = [evidence.Evidence.read(dict(zip(tables.CLAIM_TABLES, paths, strict=True)), **values) for paths in files]
    verdicts = seeds.verdicts(dict(zip(config.seeds, found, strict=True)))
    tables.write("seeds", seeds.table(verdicts, config.run, config.seeds), arguments.table)
    with replacing(arguments.page) as temporary:
        temporary.write_text(seeds_page.page(verdicts, config.run, config.text, config.seeds), encoding="utf-8")


if __name__ == "__main__":
    command.run(main, command.parser(__doc__, files=("table", "page"), lists=list(tables.CLAIM_TABLES)))
