"""Rule judge_claims: a verdict on each claim of the paper, as a table and as a page."""

from twoscale import command, tables
from twoscale.analysis import claims, claims_page
from twoscale.analysis.evidence import Evidence
from twoscale.files import replacing


def main(arguments) -> None:
    config = arguments.config
    evidence = Evidence(
        loops=tables.read("loop_sequences", arguments.loops),
        drift=tables.read("drift_sequences", arguments.drift),
        quality=tables.read("exit_quality", arguments.quality),
        exit_loops=tables.read("exit_loops", arguments.exit_loops),
        latency=tables.read("exit_latency", arguments.latency),
        checks=tables.read("check_cost", arguments.check_cost),
        max_loops=config.max_loops,
        warmup=config.warmup_iterations,
        seed=config.seed,
        published=config.published,
    )
    verdicts = claims.verdicts(evidence)
    tables.write("claims", claims.table(verdicts, config.run), arguments.table)
    spectrum = tables.read("spectrum", arguments.spectrum) if arguments.spectrum else None
    page = claims_page.page(verdicts, config.run, config.text, evidence, spectrum)
    with replacing(arguments.page) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    inputs, outputs = ("loops", "drift", "quality", "exit_loops", "latency", "check_cost"), ("table", "page")
    command.run(main, command.parser(__doc__, files=(*inputs, *outputs), optional=("spectrum",)))
