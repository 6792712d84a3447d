"""What every entry script shares: its arguments, and one sentence instead of a traceback."""

import argparse
import json
import sys
from collections.abc import Callable

from twoscale.errors import InputError


def parser(doc: str) -> argparse.ArgumentParser:
    """A parser with the script's docstring as help and the settings that Snakemake hands over."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--settings", type=json.loads, required=True, help="settings of the rule as one JSON object")
    return made


def run(main: Callable[[argparse.Namespace], None], arguments: argparse.ArgumentParser) -> None:
    """Run `main`; wrong input ends with one sentence on standard error and exit status 1."""
    try:
        main(arguments.parse_args())
    except InputError as error:
        sys.exit(f"error: {error}")
