"""Downloading a model from a hub that fails, with the real client in a separate process."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests import hub as loopback
from tests.small import ROOT

GOLDEN = ROOT / "tests" / "golden" / "published"
SHELL = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
FETCH = """
import sys
from pathlib import Path
from twoscale.config import DownloadConfig
from twoscale.data import model_files
from twoscale.base import InputError
model_files.MAX_RANGE = 4096
try:
    model_files.fetch_model(sys.argv[1], sys.argv[2], Path(sys.argv[3]), DownloadConfig(retries=2, delay=0, timeout=5))
except InputError as error:
    sys.exit(f"error: {error}")
"""


@pytest.fixture
def hub(tmp_path):
    """A hub with Huginn's golden folder and a file that must not be fetched."""
    shutil.copytree(GOLDEN / "huginn", tmp_path / "repository")
    (tmp_path / "repository" / "modeling.py").write_text("raise SystemExit('remote code ran')")
    (tmp_path / "repository" / "pytorch_model.bin").write_bytes(b"pickled")
    with loopback.serving(tmp_path / "repository") as served:
        yield served


@pytest.fixture
def fetch(hub, tmp_path):
    """Download to the folder `tmp_path / model`; returns what the process wrote to standard error."""

    def run(revision=loopback.COMMIT, succeeds=True):
        environment = SHELL | hub.environment(tmp_path / "home") | {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-c", FETCH, loopback.REPOSITORY, revision, str(tmp_path / "model")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode == 0) == succeeds, done.stderr
        return done.stderr

    return run


def assert_complete(tmp_path):
    for name in ("config.json", "model.safetensors.index.json", *shards()):
        assert (tmp_path / "model" / name).read_bytes() == (GOLDEN / "huginn" / name).read_bytes()
    assert not list((tmp_path / "model").glob("*.part"))


def shards():
    return [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


def test_a_model_is_fetched_without_code_and_pickles(fetch, hub, tmp_path):
    fetch()
    assert_complete(tmp_path)
    assert {path.suffix for path in (tmp_path / "model").iterdir()} <= {".json", ".safetensors", ".tag"}
    sent = len(hub.content_requests())
    fetch()
    assert len(hub.content_requests()) == sent + len(shards())  # one byte of each, for size and tag


@pytest.mark.parametrize("fault", [loopback.reset, loopback.truncate, loopback.short, loopback.status(503)])
def test_transient_faults_are_repeated(fetch, hub, tmp_path, fault):
    hub.faults += [loopback.nothing, loopback.nothing, fault, fault]
    assert "retrying in 0 s" in fetch()
    assert_complete(tmp_path)


def test_a_download_that_was_cut_continues_where_it_stopped(fetch, hub, tmp_path):
    hub.faults += [loopback.nothing] * 3 + [loopback.status(403)]
    assert "could not be read from the Hugging Face Hub" in fetch(succeeds=False)
    (part,) = (tmp_path / "model").glob("*.part")
    assert part.stat().st_size == 2 * 4096
    before = len(hub.content_requests())
    fetch()
    assert_complete(tmp_path)
    ranges = [asked for path, asked in hub.content_requests()[before:] if path.endswith(shards()[0])]
    assert ranges[1].startswith("bytes=8192-")


def test_files_of_another_content_are_fetched_again(fetch, hub, tmp_path):
    fetch()
    (hub.folder / shards()[0]).write_bytes((GOLDEN / "huginn" / shards()[1]).read_bytes())
    fetch()
    assert (tmp_path / "model" / shards()[0]).read_bytes() == (hub.folder / shards()[0]).read_bytes()


def test_a_revision_that_does_not_exist_is_named(fetch):
    message = fetch("f" * 40, succeeds=False)
    assert f"error: {loopback.REPOSITORY}, revision {'f' * 40}: could not be read" in message


def test_a_repository_without_weights_is_refused(fetch, hub):
    for name in shards():
        (hub.folder / name).unlink()
    assert "expected config.json and safetensors files." in fetch(succeeds=False)


def test_a_name_of_the_listing_never_leaves_the_folder(fetch, hub, tmp_path):
    names = [*hub.files(), "model-/../../../escaped-of-1.safetensors", "model-\x1b[2J-of-2.safetensors"]
    info = {"_id": "0", "id": loopback.REPOSITORY, "sha": loopback.COMMIT}
    info |= {"siblings": [{"rfilename": name} for name in names]}
    hub.api_faults += [lambda handler: handler.answer(200, json.dumps(info).encode())]
    message = fetch(succeeds=False).strip()
    assert "found a file named 'model-\\x1b[2J-of-2.safetensors', expected a path inside the repository" in message
    assert message.isprintable()
    assert not (tmp_path / "model").exists()
