"""The command `twoscale`.

    twoscale exits check TABLE      which exit rule saves loop steps, and is it better than chance?
    twoscale exits random EXITS     random exits of the same cost, for an engine's trace mode
    twoscale card FOLDER            the depth card of a recorded model
    twoscale draw FOLDER            figures and claims of a recorded model
    twoscale compare RUN RUN TABLE  a table of two runs side by side
    twoscale overview               what there is to import and to run

Each has --help. Exit status: 0, 1 for wrong input (one sentence), 2 for a wrong command line.
Libraries are imported by the subcommand that needs them.
"""

import argparse
import sys
from pathlib import Path

from twoscale.replay import TOLERANCE


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.run is None:
        arguments.print_help()
        return
    from twoscale.base import ending_with_a_sentence

    # every path of these commands is one of the user
    with ending_with_a_sentence(expected="a path that can be used"):
        arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twoscale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=None, print_help=parser.print_help)
    commands = parser.add_subparsers(metavar="COMMAND")
    exits = commands.add_parser("exits", help="exit rules against chance at the same cost")
    exits.set_defaults(print_help=exits.print_help)
    _add_check(exits_commands := exits.add_subparsers(metavar="COMMAND"))
    _add_random(exits_commands)
    _add_card(commands)
    _add_draw(commands)
    _add_compare(commands)
    overview = _add(commands, "overview", _overview, "what there is to import and to run")
    overview.epilog = "example: twoscale overview"
    return parser


def _add(commands, name: str, run, text: str, example: str = "") -> argparse.ArgumentParser:
    """A subcommand that calls `run` with its arguments."""
    parser = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + "." * (not text.endswith("?")),
        epilog=example and f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


# --- twoscale exits ------------------------------------------------------------------------------


_FORMATS = """\
table is one of
  parquet   a row for each token and depth, 1, 2, ... evaluations of the loop: the columns sequence,
            position, depth, and loss, in nats, or top1, the predicted token; document, if it is
            not the sequence; further columns of numbers are signals, such as entropy; --signals
            names the ones that are not called after a criterion
  parquet   a trajectory of vLLM-Hook, as published: forward_index, iteration, token_index, ...
  .npz      losses (sequences, positions, depths), NaN beyond the end of a sequence, and optionally
            documents (sequences,)
  folder    a run, or a recording with exits
exits is a parquet table with a row for each criterion, threshold and token: criterion, threshold,
sequence, position, and depth, at which the token leaves
"""


def _add_check(commands) -> None:
    parser = _add(
        commands,
        "check",
        _check,
        "which exit rule saves loop steps, and is it better than random exits of the same cost?",
        "twoscale exits check trajectory.parquet --tolerance 0.01 --out check/",
    )
    parser.epilog = f"{_FORMATS}\n{parser.epilog}"
    add = parser.add_argument
    add("table", type=Path, help="losses and signals per token and depth, or the folder of a run")
    add("exits", type=Path, nargs="?", help="exits that your program chose, in place of signals")
    tolerance = "allowed loss above full depth: nats, or a share of changed predictions"
    add("--tolerance", type=float, default=TOLERANCE, help=f"{tolerance} (default: %(default)s)")
    add("--signals", default="", metavar="A,B", help="columns to exit by (default: known names)")
    add("--both", nargs=2, action="append", default=[], metavar="SIGNAL", help="a pair, by 'and'")
    add("--out", type=Path, help="folder for page, figure, JSON and exits")
    add("--json", action="store_true", help="print the result as JSON")
    add("--seed", type=int, default=0, help="of the halves and of the intervals")


def _check(arguments: argparse.Namespace) -> None:
    from twoscale.base import InputError
    from twoscale.replay import rules
    from twoscale.replay.arena import write_arena
    from twoscale.replay.check import check
    from twoscale.replay.recording import read_exits, read_recording
    from twoscale.replay.run_tables import read_run

    chosen = (arguments.tolerance, arguments.seed)
    if not arguments.tolerance >= 0:  # NaN too
        raise InputError(f"--tolerance: found {arguments.tolerance:g}, expected 0 or more.")
    if arguments.table.is_dir():
        run = read_run(arguments.table)
        result = check(run, lambda first: run.options(), *chosen)
        _print_check(result, arguments)
        return
    recording = read_recording(arguments.table)
    if arguments.exits is not None:
        exits = read_exits(arguments.exits, recording)
        result = check(recording, lambda first: rules.options_of_exits(exits), *chosen)
        if arguments.out is not None and recording.is_loss:  # the arena compares nats
            named = (arguments.exits.stem, arguments.out, arguments.tolerance)
            write_arena(recording, exits, *named)
    else:
        asked = [name for name in arguments.signals.split(",") if name]
        recording = rules.with_signals(recording, asked, arguments.both)
        if not recording.signals:
            left_out = f" ({recording.note})" if recording.note else ""
            expected = "the signal of a criterion as a further column, or a table of exits"
            raise InputError(f"{arguments.table}: found no signals{left_out}, expected {expected}.")
        pairs = rules.pairs(recording, arguments.both)
        result = check(recording, lambda first: rules.options(first, pairs), *chosen)
    _print_check(result, arguments)


def _print_check(result, arguments: argparse.Namespace) -> None:
    import json

    from twoscale.replay import page

    if arguments.out is not None:
        page.write(result, arguments.out)
    if arguments.json:
        print(json.dumps(page.as_dict(result)))
    else:
        print(page.text(result))


def _add_random(commands) -> None:
    parser = _add(
        commands,
        "random",
        _random,
        "random exits with the depths of a rule, for an engine that takes prescribed depths",
        "twoscale exits random check/exits.parquet --criterion entropy > depths.json",
    )
    add = parser.add_argument
    add("exits", type=Path, help="table of exits, such as exits.parquet of `exits check --out`")
    add("--criterion", help="which criterion of the table")
    add("--threshold", type=float, help="which threshold of the criterion")
    add("--out", type=Path, help="file for the depths (default: standard output)")
    add("--seed", type=int, default=0, help="of the draw")


def _random(arguments: argparse.Namespace) -> None:
    import json

    from twoscale.base import replacing
    from twoscale.replay.random_exits import random_exits

    chosen = (arguments.criterion, arguments.threshold, arguments.seed)
    text = json.dumps(random_exits(arguments.exits, *chosen))
    if arguments.out is None:
        print(text)
        return
    with replacing(arguments.out) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


# --- recorded models -----------------------------------------------------------------------------


def _add_card(commands) -> None:
    parser = _add(
        commands,
        "card",
        _card,
        "the depth card of a recorded model",
        'twoscale card results/mine --unlooped results/control --text "FineWeb, validation"',
    )
    add = parser.add_argument
    add("folder", type=Path, help="folder that a Recorder with `decode` wrote")
    add("--text", help="name of the text")
    add("--unlooped", type=Path, help="recording of a model without loops, on the same sequences")
    add("--iteration", type=int, help="training iteration of the weights (default: the last one)")
    add("--tolerance", type=float, help="tolerance of plateau and exits, in nats per token")
    add("--hub", action="store_true", help="print a section and metadata for a README.md instead")


def _card(arguments: argparse.Namespace) -> None:
    from twoscale.recorder.run import hub_card, write_card

    given = _given(arguments, "text", "unlooped", "iteration", "tolerance")
    if arguments.hub:
        print(hub_card(arguments.folder, **given), end="")
        return
    print(*write_card(arguments.folder, **given), sep="\n")


def _add_draw(commands) -> None:
    parser = _add(
        commands,
        "draw",
        _draw,
        "figures, tables and claims of a recorded model",
        "twoscale draw results/mine --reading direction --html",
    )
    add = parser.add_argument
    add("folder", type=Path, help="folder that a Recorder wrote; its name is that of the run")
    add("--text", help="name of the text, for the footer of the figures")
    add("--reading", choices=["state", "direction"], help="steps of Fig. 3 and 5")
    add("--html", action="store_true", help="also loops.html, to look at each loop step of tokens")


def _draw(arguments: argparse.Namespace) -> None:
    from twoscale.recorder.run import draw_run

    print(*draw_run(arguments.folder, **_given(arguments, "text", "reading", "html")), sep="\n")


def _given(arguments: argparse.Namespace, *names: str) -> dict:
    """The options with these names that were given."""
    found = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


# --- runs ----------------------------------------------------------------------------------------


def _add_compare(commands) -> None:
    parser = _add(
        commands,
        "compare",
        _compare,
        "a table of two runs, one below the other, as CSV",
        "twoscale compare results/demo results/mine loop_metrics --iteration 600",
    )
    add = parser.add_argument
    add("runs", type=Path, nargs=2, metavar="RUN", help="folder of a run")
    add("table", help="name of a table, such as loop_metrics")
    add("--iteration", type=int, help="only the rows of this checkpoint")


def _compare(arguments: argparse.Namespace) -> None:
    from twoscale.dynamics.run_tables import compare

    first, second = arguments.runs
    both = compare(first, second, arguments.table, arguments.iteration)
    both.to_csv(sys.stdout, index=False)


def _overview(arguments: argparse.Namespace) -> None:
    """The docstrings of the library, and in a checkout of the Snakefile and of the scripts."""
    import twoscale

    project = Path(__file__).parents[2]
    print(twoscale.__doc__)
    print(__doc__)
    snakefile = project / "Snakefile"
    if not snakefile.is_file():
        return
    print(snakefile.read_text(encoding="utf-8").split('"""')[1])  # its docstring
    for path in sorted(project.glob("scripts/*.py")):
        first = path.read_text(encoding="utf-8").split('"""')[1].partition("\n")[0]
        if not first.startswith("Rule"):  # those are for jobs
            print(f"scripts/{path.name}: {first}")


if __name__ == "__main__":
    main()
