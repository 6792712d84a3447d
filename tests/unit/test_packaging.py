"""Files that describe the project to others: citation, archive, catalog, lock files and recipes of containers agree."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import twoscale
from twoscale.config import PROJECT

LOCKS = ("cpu", "cuda")
ENTRY = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+) \\\n(?P<hashes>(?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE)
# the libraries that the CPU build of PyTorch does without
OF_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")


def read(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def locked(name: str) -> dict[str, Version]:
    return {entry["name"]: Version(entry["version"]) for entry in ENTRY.finditer(read(f"envs/{name}.lock.txt"))}


def required() -> list[Requirement]:
    lines = (line.partition("#")[0].strip() for line in read("requirements.txt").splitlines())
    return [Requirement(line) for line in lines if line]


def in_force(name: str, version: Version) -> list[str]:
    """What this version of a package requires here, without extras; nothing if another or none is installed."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return []
    if Version(package.version).public != version.public:  # the tests with packages of their own replace some
        return []
    texts = package.requires or []
    markers = ((text, Requirement(text).marker) for text in texts)
    return [text for text, marker in markers if marker is None or marker.evaluate({"extra": ""})]


def author_name(author):
    return author.get("name") or f"{author['family-names']}, {author['given-names']}"


def test_the_archive_and_the_citation_say_the_same():
    archive, citation = json.loads(read(".zenodo.json")), yaml.safe_load(read("CITATION.cff"))
    assert archive["title"] == citation["title"]
    assert archive["license"] == citation["license"]
    assert archive["upload_type"] == citation["type"]
    assert archive["version"] == citation["version"] == twoscale.__version__
    assert archive["keywords"] == citation["keywords"]
    assert archive["description"] == f"<p>{citation['abstract']}</p>"
    assert [creator["name"] for creator in archive["creators"]] == [*map(author_name, citation["authors"])]
    cited = [reference["url"] for reference in citation["references"]]
    assert [related["identifier"] for related in archive["related_identifiers"]] == cited


def test_codemeta_and_the_changelog_say_what_the_citation_says():
    meta, citation, own = json.loads(read("codemeta.json")), yaml.safe_load(read("CITATION.cff")), project()
    assert (meta["name"], meta["version"], meta["datePublished"]) == tuple(
        citation[key] for key in ("title", "version", "date-released")
    )
    assert meta["license"] == f"https://spdx.org/licenses/{citation['license']}"
    assert own["license"] == citation["license"]
    assert [author["name"] for author in meta["author"]] == [*map(author_name, citation["authors"])]
    assert (meta["identifier"], meta["description"]) == (own["name"], own["description"])
    assert meta["runtimePlatform"] == f"Python {own['requires-python']}"
    cited = [reference["url"] for reference in citation["references"]]
    assert [article["identifier"] for article in meta["referencePublication"]] == cited
    assert [article["name"] for article in meta["referencePublication"]] == [r["title"] for r in citation["references"]]
    assert meta["keywords"] == citation["keywords"]
    latest = re.search(r"^## (\S+), (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert latest.groups() == (citation["version"], citation["date-released"])
    assert f"--tag v{citation['version']}" in read("docs/release.md")


def project() -> dict[str, Any]:
    return tomllib.loads(read("pyproject.toml"))["project"]


def test_the_pins_are_in_the_range_of_versions_of_the_library():
    allowed = {need.name: need.specifier for need in map(Requirement, project()["dependencies"])}
    pinned = {need.name: next(iter(need.specifier)).version for need in required() if need.name in allowed}
    assert pinned.keys() == allowed.keys()
    assert [name for name, version in pinned.items() if version not in allowed[name]] == []


def test_the_range_of_versions_is_tested_and_documented():
    prefix = "Programming Language :: Python :: "
    pythons = [line.removeprefix(prefix) for line in project()["classifiers"] if line.startswith(prefix)]
    (torch,) = (Requirement(need) for need in project()["dependencies"] if need.startswith("torch"))
    assert f"for version in {' '.join(pythons)}; do" in read("tests/pythons.sh")
    assert project()["requires-python"] == f">={pythons[0]}"
    readme = read("README.md").replace("\n", " ")
    assert f"Python {pythons[0]} or newer ({pythons[0]} to {pythons[-1]} are tested)" in readme
    assert f"needs torch {str(torch.specifier)[2:]} or newer" in readme


def test_the_catalog_finds_what_its_standardized_usage_asks_for():
    assert 'include: "../Snakefile"' in read("workflow/Snakefile")
    assert read("config/README.md").startswith("# Configuration\n")
    assert (PROJECT / "config" / "config.yaml").readlink() == Path("../config.yaml")
    usage = yaml.safe_load(read(".snakemake-workflow-catalog.yml"))["usage"]
    assert usage["software-stack-deployment"]["conda"]
    assert usage["report"]


def test_public_continuous_integration_runs_the_projects_own_checks():
    (job,) = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_what_the_requirements_pin(name):
    pins = locked(name)
    for requirement in required():
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: locked at {version}, run make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_a_hash_for_every_package_and_names_no_index(name):
    text = read(f"envs/{name}.lock.txt")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    entries = list(ENTRY.finditer(text))
    assert len(lines) == sum(1 + len(entry["hashes"].splitlines()) for entry in entries)
    hashes = [line.strip(" \\") for entry in entries for line in entry["hashes"].splitlines()]
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes)
    assert not re.search(r"https?:|--index|--find-links", text)


def test_the_locks_differ_only_in_pytorch_and_the_libraries_of_cuda():
    cpu, cuda = map(locked, LOCKS)
    shared = cuda.keys() - {"torch"} - set(filter(OF_CUDA.fullmatch, cuda))
    assert {name: cpu[name] for name in cpu.keys() - {"torch"}} == {name: cuda[name] for name in shared}
    assert cpu["torch"].base_version == cuda["torch"].base_version
    assert cpu["torch"].local == "cpu"
    assert not list(filter(OF_CUDA.fullmatch, cpu))


def test_a_lock_contains_everything_that_its_packages_require():
    """As far as the versions that are installed are the locked ones."""
    pins, missing = locked("cpu"), []
    for name, version in pins.items():
        for text in in_force(name, version):
            requirement = Requirement(text)
            found = pins.get(canonicalize_name(requirement.name))
            if found is None or not requirement.specifier.contains(found, prereleases=True):
                missing.append(f"{name}=={version} requires {text}, locked: {found}")
    assert missing == []


@pytest.mark.parametrize("name", ["analysis", "torch"])
def test_a_conda_environment_pins_all_packages_to_the_versions_of_the_lock(name):
    (listed,) = (
        entry["pip"] for entry in yaml.safe_load(read(f"envs/{name}.yaml"))["dependencies"] if isinstance(entry, dict)
    )
    versions = dict(package.split("==") for package in listed)
    pins = locked("cpu")
    found = {name: Version(version) for name, version in versions.items()}
    assert found == {name: Version(pins[canonicalize_name(name)].public) for name in found}
    names = set(map(canonicalize_name, versions))
    required_names = {
        canonicalize_name(Requirement(text).name)
        for name, version in versions.items()
        for text in in_force(name, Version(version))
    }
    assert required_names - names == set()


def test_both_recipes_build_the_same_image():
    docker, apptainer = read("envs/Dockerfile"), read("envs/apptainer.def")
    install = "pip install --no-cache-dir --no-deps --require-hashes --requirement /opt/twoscale/lock.txt"
    packages = "apt-get install --yes --no-install-recommends g++ git"
    for recipe in (docker, apptainer):
        assert install in recipe
        assert packages in recipe
    base = re.compile(r"BASE=(\S+)")
    assert base.search(docker)[1] == base.search(apptainer)[1]
    assert all((PROJECT / "envs" / f"{name}.lock.txt").exists() for name in LOCKS)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_old_python_is_refused_before_anything_is_installed(tmp_path):
    """A script that runs Python under another version stands for one."""
    old = tmp_path / "python3.9"
    run = "import sys; sys.version_info = (3, 9); exec(sys.argv[2])"
    old.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{run}' \"$@\"\n")
    old.chmod(0o755)
    command = ["make", "--directory", str(PROJECT), "env", f"PYTHON={old}", f"VENV={tmp_path / 'environment'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{old}: found Python 3.9, expected 3.11 or newer: make PYTHON=python3.12\n" in done.stderr
    assert not (tmp_path / "environment").exists()
