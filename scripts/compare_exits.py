"""Rule compare_exits: exit criteria beside controls and oracles, as tables and as a page."""

from twoscale import command, tables
from twoscale.files import replacing
from twoscale.studies.arena import compare as arena
from twoscale.studies.arena import page as arena_page


def main(arguments) -> None:
    config = arguments.config
    names = ("exit_quality", "exit_loops", "exit_controls", "exit_regret", "oracle_frontier")
    quality, loops, controls, regret, frontier = (tables.read(name, getattr(arguments, name)) for name in names)
    compared = arena.summarise(quality, loops, controls, regret, frontier, config.seed).assign(run=config.run)
    settling = arena.settling(regret, config.seed).assign(run=config.run)
    tables.write("arena", compared, arguments.arena)
    tables.write("settling", settling, arguments.settling)
    with replacing(arguments.page) as temporary:
        temporary.write_text(arena_page.page(compared, settling, config.page), encoding="utf-8")


if __name__ == "__main__":
    files = ("exit_quality", "exit_loops", "exit_controls", "exit_regret", "oracle_frontier")
    command.run(main, command.parser(__doc__, files=(*files, "arena", "settling", "page")))
