"""The unit tests with the newest version of each package that resolves, in place of the pins of
requirements.txt.

    python -m tests.newest FOLDER

FOLDER becomes an environment on top of the one that runs this. The last line names the versions that
differ from the pins. Where tests fail, each of these packages is tried alone, and the last line
names those with which tests fail.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib import metadata
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
NAME = re.compile(r"[\w.-]+")
TESTS_FAILED = 1  # exit status of pytest
TOOLS = {"ruff", "snakefmt", "mypy", "codespell"}  # of requirements.txt, which no test runs


class Overlay:
    """An environment in `folder` that has the packages of the one that runs this, and further ones
    before them.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True, clear=True)
        self.folder, self.python = folder, folder.resolve() / "bin" / "python"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        (self.packages / "zz_below.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.constraints = folder / "constraints.txt"
        self.constraints.write_text(f"torch=={metadata.version('torch')}\n")
        self._before = self.versions()

    def install(self, *arguments: str | Path) -> str:
        """Why pip cannot install these; empty if it did."""
        command = (self.python, *PIP, "-c", self.constraints, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return last_line(done.stderr) if done.returncode else ""

    def install_torch(self) -> str:
        """Why the newest torch cannot be installed; empty if it was."""
        command = (self.python, PROJECT / "tests" / "cpu_torch.py", "torch")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return last_line(done.stderr) if done.returncode else ""

    def distributions(self) -> dict[str, metadata.Distribution]:
        """Name -> the package of this name in the folder."""
        packages = metadata.distributions(path=[str(self.packages)])
        return {package.name: package for package in packages}

    def versions(self) -> dict[str, str]:
        """Name -> version of the packages in the folder."""
        return {name: package.version for name, package in self.distributions().items()}

    def differing(self) -> dict[str, str]:
        """Name -> version of the packages that were installed."""
        return {
            name: version for name, version in self.versions().items() if name not in self._before
        }


def last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def pytest(python: str | Path, *arguments: str, before: Path | None = None) -> int:
    """Exit status of pytest, with the modules in the folder `before` before all others."""
    paths = os.pathsep.join([*([str(before)] if before else []), "src"])
    command = (python, "-m", "pytest", "-q", *arguments)
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(command, cwd=PROJECT, env=environment, check=False).returncode


def passes(python: str | Path, *arguments: str) -> bool:
    return pytest(python, *arguments) == 0


def wanted() -> list[str]:
    """Names of the packages of requirements.txt and pyproject.toml, without torch."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (PROJECT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    requirements = [line for line in lines if not line.startswith("#")]
    requirements += project["dependencies"]
    for extra in ("torch", "workflow"):
        requirements += project["optional-dependencies"][extra]
    names = {NAME.match(requirement)[0] for requirement in requirements}  # type: ignore[index]
    return sorted(names - TOOLS - {"torch", "twoscale"})


def described(versions: dict[str, str]) -> str:
    return ", ".join(
        f"{name} {version}"
        for name, version in sorted(versions.items(), key=lambda item: item[0].lower())
    )


def culprits(overlay: Overlay, versions: dict[str, str], failed: list[str]) -> dict[str, str]:
    """Those of the packages with which, alone, tests fail that failed with all of them."""
    found = {}
    packages = overlay.distributions()
    for name, version in versions.items():
        alone = overlay.folder.resolve() / "alone" / name
        alone.mkdir(parents=True)
        for entry in {path.parts[0] for path in packages[name].files or ()} - {"..", "__pycache__"}:
            (alone / entry).symlink_to(overlay.packages.resolve() / entry)
        # another status: it cannot be imported without another of the packages
        if pytest(sys.executable, *failed, before=alone) == TESTS_FAILED:
            found[name] = version
    return found


def main(folder: Path, *tests: str) -> None:
    overlay = Overlay(folder)
    if reason := overlay.install("--upgrade", "--upgrade-strategy", "eager", *wanted()):
        print(f"newest packages: skipped, they cannot be installed: {reason}")
        return
    if reason := overlay.install_torch():
        print(f"newest packages: torch stays as it is, the newest cannot be installed: {reason}")
    differing = overlay.differing()
    if reason := overlay.install("--no-deps", "--editable", PROJECT):
        print(f"newest packages: skipped, this package cannot be installed: {reason}")
        return
    cache = folder.resolve() / "cache"
    options = ("-o", f"cache_dir={cache}")
    # times that are measured on a busy machine may fail once
    if passes(overlay.python, *options, "-n", "2", *tests) or passes(
        overlay.python, *options, "--last-failed", *tests
    ):
        print(
            f"newest packages: the tests pass with"
            f" {described(differing) or 'the pins, which are the newest'}"
        )
        return
    failed = list(json.loads((cache / "v" / "cache" / "lastfailed").read_text(encoding="utf-8")))
    if not passes(sys.executable, *failed):
        sys.exit(
            "newest packages: found tests that fail with the pinned packages too, expected them"
            " to pass"
        )
    found = culprits(overlay, differing, failed) or differing
    sys.exit(
        f"newest packages: found tests that fail with {described(found)}, expected them to pass"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(sys.argv[2:] or ["tests/unit"]))
