"""Rule claims: a verdict on each claim of the paper, as a table and as a page."""

from pathlib import Path

from twoscale.analysis import claims, claims_page
from twoscale import command, tables
from twoscale.analysis.evidence import Evidence
from twoscale.files import replacing


def main(arguments):
    chosen = arguments.config
    run = Evidence(
        loops=tables.read("loop_sequences", arguments.loops),
        drift=tables.read("drift_sequences", arguments.drift),
        quality=tables.read("exit_quality", arguments.quality),
        latency=tables.read("exit_latency", arguments.latency),
        checks=tables.read("check_cost", arguments.checks),
        budget=chosen["exit_budget"],
        seed=chosen["seed"],
    )
    found = claims.verdicts(run)
    tables.write("claims", claims.table(found, chosen["run"]), arguments.table)
    with replacing(arguments.page) as temporary:
        temporary.write_text(claims_page.page(found, chosen["run"], chosen["text"], run), encoding="utf-8")


if __name__ == "__main__":
    parser = command.parser(__doc__)
    for name in ("loops", "drift", "quality", "latency", "checks"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="input table")
    parser.add_argument("--table", type=Path, required=True, help="output: table claims")
    parser.add_argument("--page", type=Path, required=True, help="output: claims.md")
    command.run(main, parser)
