"""The tests of exports with the oldest transformers of pyproject.toml, and with the newest that pip
finds.

    python -m tests.release.versions FOLDER

Each version has an environment in FOLDER, on top of the one that runs this, where
tests/release/requirements.txt is installed. One that cannot be installed is skipped and says so.
"""

import sys
import tomllib
from pathlib import Path

from tests.newest import PROJECT, Overlay, passes


def oldest() -> str:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = (
        need
        for need in project["optional-dependencies"]["test-release"]
        if need.startswith("transformers>=")
    )
    return requirement.replace(">=", "==") + ".*"


def main(folder: Path) -> None:
    failed = []
    # lm-eval has its own requirements of transformers' dependencies, so it is tested with the
    # newest only
    for requirement, tests in (
        (oldest(), "tests/release/test_transformers.py"),
        ("transformers", "tests/release"),
    ):
        overlay = Overlay(folder / requirement.rpartition("=")[2].removesuffix(".*"))
        if reason := overlay.install("--upgrade", requirement):
            print(f"{requirement}: skipped, it cannot be installed: {reason}", flush=True)
            continue
        version = overlay.versions().get("transformers")
        if version is None:
            print(
                "transformers: no newer version than that of tests/release/requirements.txt",
                flush=True,
            )
            continue
        print(f"transformers {version}", flush=True)
        if not passes(overlay.python, tests):
            failed.append(version)
    if failed:
        sys.exit(
            f"transformers {' and '.join(failed)}: found tests of exports that fail, expected"
            f" them to pass"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
