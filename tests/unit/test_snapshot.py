"""Snapshots: the files of a run, and what the manifest says of them."""

import hashlib
import json
import subprocess

import pandas as pd
import pytest

from twoscale import tables
from twoscale.base import InputError
from twoscale.jobs import environment, machine
from twoscale.report import snapshot


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    (folder / "demo/tables").mkdir(parents=True)
    (folder / "claims.md").write_text("# Claims\n")
    (folder / "demo/tables/drift.parquet").write_bytes(b"PAR1")
    return folder


def test_files_keep_their_paths_and_the_manifest_has_their_digests(results, tmp_path):
    files = [results / "demo/tables/drift.parquet", results / "claims.md"]
    snapshot.write(tmp_path / "snapshot", files, results, {"run": "demo"})
    assert (tmp_path / "snapshot/demo/tables/drift.parquet").read_bytes() == b"PAR1"
    manifest = json.loads((tmp_path / "snapshot/manifest.json").read_text())
    assert manifest == {
        "run": "demo",
        "files": {
            "claims.md": {"bytes": 9, "sha256": hashlib.sha256(b"# Claims\n").hexdigest()},
            "demo/tables/drift.parquet": {"bytes": 4, "sha256": hashlib.sha256(b"PAR1").hexdigest()},
        },
    }


def test_a_snapshot_of_the_same_files_has_the_same_bytes(results, tmp_path):
    for name in ("one", "two"):
        snapshot.write(tmp_path / name, {results / "claims.md", results / "demo/tables/drift.parquet"}, results, {})
    assert (tmp_path / "one/manifest.json").read_bytes() == (tmp_path / "two/manifest.json").read_bytes()


def test_the_commit_is_that_of_the_checkout_and_says_whether_files_were_changed(tmp_path):
    assert snapshot.checkout(tmp_path) == {"commit": None, "modified": None}
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = snapshot.checkout(tmp_path)
    assert len(found["commit"]) == 40
    assert found["modified"] is False
    (tmp_path / "file").write_text("2")
    assert snapshot.checkout(tmp_path) == found | {"modified": True}


def test_the_text_is_named_by_the_digests_of_its_tokens_or_refused_in_one_sentence(tmp_path):
    tokens = tmp_path / "tokens.json"
    with pytest.raises(InputError, match=r"tokens\.json: found no such file, expected the token metadata"):
        snapshot.text(tokens)
    tokens.write_text('{"parts": {"val.bin": {"sha256": "ab", "count": 3}, "train.bin": {"sha256": "cd"}}}')
    assert snapshot.text(tokens) == {"train.bin": "cd", "val.bin": "ab"}
    tokens.write_text('{"parts": {"val.bin": {}}}')
    with pytest.raises(InputError, match=r"tokens\.json: found no token metadata \('sha256'\)"):
        snapshot.text(tokens)


def test_hours_of_training_are_those_of_its_iterations_and_environments_are_named_where_they_change(tmp_path):
    log = pd.DataFrame({"iteration": [1, 2], "tokens_seen": [3600, 7200], "tokens_per_s": [1.0, 0.5]})
    first, second = {"first_iteration": 1, "threads": 2}, {"first_iteration": 9, "threads": 4}
    segments = []
    for number, environments in enumerate(([first], [first | {"first_iteration": 5}, second])):
        segments.append(tmp_path / f"{number}.parquet")
        with tables.writing("training", segments[-1], metadata={environment.KEY: json.dumps(environments)}):
            pass
    assert snapshot.training(log, segments) == {
        "iterations": 2,
        "tokens": 7200,
        "hours": 3.0,
        "environments": [first, second],
    }


def test_versions_are_those_that_are_installed():
    assert snapshot.versions()["pandas"] == pd.__version__


def test_the_machine_is_named_without_its_host():
    found = machine.description()
    assert set(found) == {"processor", "cpus", "memory_gb"}
    assert found["processor"]
    assert found["cpus"] >= 1
    assert found["memory_gb"] > 0.1
