"""Text from a hub on loopback that fails, with the entry script and the real client as
processes.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import hub as loopback
from tests.small import ROOT
from twoscale.config import DataConfig, DownloadConfig, TextQuota, plain
from twoscale.data import ingestion

FILES = [f"sample/10/{number:03d}.parquet" for number in range(3)]
CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample
  data_files:
  - split: train
    path: sample/10/*
---
"""
SMALL = TextQuota("characters", 300, 50)
EVERYTHING = TextQuota("characters", None, 10**9)
DOWNLOAD = {"download": plain(DownloadConfig(retries=2, delay=0.05, part_characters=300))}


# A process that calls a function of the module with a faulty hub's address.
CALLS = {
    "resolve": "hub.resolve(REPOSITORY, 'sample', 'main', download)",
    "documents": "list(hub.documents(hub.Subset(REPOSITORY, COMMIT, ()), FILE, 0, download))",
    "fetch_model": "hub.fetch_model(REPOSITORY, 'main', Path(FOLDER), download)",
}
CALLER = """
import argparse
from pathlib import Path
from twoscale.config import DownloadConfig
from twoscale.data import hub
from twoscale.jobs import command
download = DownloadConfig(retries=2, delay=0.05)
command.run(lambda arguments: print({call}), argparse.ArgumentParser())
"""


class Run(NamedTuple):
    """One call of an entry script or of a function."""

    command: list
    environment: dict[str, str]
    folder: Path | None = None  # in which the process starts

    def start(self) -> subprocess.Popen:
        return subprocess.Popen(
            self.command, env=self.environment, cwd=self.folder, stderr=subprocess.PIPE, text=True
        )

    def end(self, status: int) -> str:
        options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
        done = subprocess.run(self.command, env=self.environment, cwd=self.folder, **options)
        assert done.returncode == status, done.stderr
        return done.stderr

    def succeed(self) -> str:
        """What was written to standard error."""
        return self.end(0)

    def fail(self) -> str:
        """The last line of standard error: one sentence and no traceback."""
        said = self.end(1)
        assert "Traceback" not in said
        return said.splitlines()[-1]


@pytest.fixture
def repository(tmp_path):
    """A data set with two subsets; the tests use one with three files of 40 documents in row groups
    of 10.
    """
    root = tmp_path / "repository"
    for name in (*FILES, "data/other/000.parquet"):
        ids = [f"{name}-{row}" for row in range(40)]
        table = pa.table(
            {
                "text": [f"text of {i} " + "word " * (len(i) % 5) for i in ids],
                "id": ids,
                "score": [0.5] * 40,
            }
        )
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / name, row_group_size=10)
    (root / "README.md").write_text(CARD)
    return root


@pytest.fixture
def hub(repository):
    with loopback.serving(repository) as served:
        yield served


@pytest.fixture
def shards(tmp_path):
    return [tmp_path / f"out/shard_{number}.parquet" for number in range(2)]


@pytest.fixture
def run(hub, shards, tmp_path):
    """A function that returns a run of prepare_text with a changed config; runs share the folder of
    parts.
    """

    def make(quota=EVERYTHING, revision="main", subset="sample", **variables) -> Run:
        data = DataConfig(
            repository=loopback.REPOSITORY, subset=subset, revision=revision, held_out_fraction=0.2
        )
        command = [sys.executable, ROOT / "scripts/prepare_text.py"]
        command += ["--config", json.dumps({"data": plain(data), "quota": asdict(quota)})]
        command += [
            "--download",
            json.dumps(DOWNLOAD),
            "--parts",
            tmp_path / "parts",
            "--text",
            *shards,
        ]
        own = {"PYTHONPATH": str(ROOT / "src"), "USE_TORCH": "0"}
        return Run(command, os.environ | own | hub.environment(tmp_path / "home") | variables)

    return make


@pytest.fixture
def call(hub, tmp_path):
    """A function that returns a process which calls one of CALLS."""
    names = {"REPOSITORY": loopback.REPOSITORY, "COMMIT": loopback.COMMIT, "FILE": FILES[0]}
    names["FOLDER"] = str(tmp_path / "model")
    definitions = "".join(f"{name} = {value!r}\n" for name, value in names.items())

    def make(name, **variables) -> Run:
        code = definitions + CALLER.format(call=CALLS[name])
        own = {"PYTHONPATH": str(ROOT / "src")}
        environment = os.environ | own | hub.environment(tmp_path / "home") | variables
        return Run([sys.executable, "-c", code], environment)

    return make


@pytest.fixture
def expected(repository, tmp_path):
    """Contents of the shards from the same files in a local folder."""
    shards = [tmp_path / f"expected/shard_{number}.parquet" for number in range(2)]
    data = DataConfig(source="parquet", path=str(repository / "sample"), held_out_fraction=0.2)
    ingestion.prepare_text(data, EVERYTHING, shards, tmp_path / "expected/parts", DownloadConfig())
    return contents(shards)


def contents(shards):
    return [shard.read_bytes() for shard in shards]


def complete(tmp_path):
    """The parts in the manifest."""
    manifest = tmp_path / "parts" / ingestion.MANIFEST
    return json.loads(manifest.read_text())["parts"] if manifest.exists() else []


def test_a_hub_that_fails_yields_the_same_bytes_as_a_folder_of_the_same_files(
    hub, run, expected, shards
):
    hub.faults += [
        loopback.short,
        loopback.status(429, Retry_After="0"),
        loopback.truncate,
        loopback.nothing,
    ]
    hub.faults += [loopback.short, loopback.short]  # in the middle: the second file, twice in a row
    assert run().succeed().count("retrying in") == 3
    assert contents(shards) == expected
    assert {path for path, _ in hub.content_requests()} == {f"/store/{name}" for name in FILES}


def test_failures_between_which_documents_arrive_are_not_counted_together(
    hub, repository, run, shards
):
    draw = random.Random(0)
    texts = [draw.randbytes(35_000).hex() for _ in range(340)]
    # so large that the client asks for it in several ranges
    options = {"row_group_size": 20, "compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"text": texts}), repository / FILES[0], **options)
    hub.faults += [loopback.nothing, loopback.nothing, loopback.status(520)] * 3
    assert run().succeed().count("retrying in") == 3 > DOWNLOAD["download"]["retries"]
    arrived = [text for shard in shards for text in pq.read_table(shard)["text"].to_pylist()]
    assert arrived[:340] == texts
    assert len(arrived) == 340 + 80


def test_a_killed_download_continues_at_the_commit_of_its_first_part(
    hub, run, expected, shards, tmp_path
):
    process = None
    hub.faults += [loopback.nothing, loopback.calling(lambda: process.kill())]  # at the second file
    process = run().start()
    process.communicate()
    parts = complete(tmp_path)
    assert {part["file"] for part in parts} == {FILES[0]}
    assert not any(shard.exists() for shard in shards)
    asked = len(hub.requests)
    hub.revisions["main"] = "f" * 40
    run().succeed()
    assert contents(shards) == expected
    assert complete(tmp_path)[: len(parts)] == parts
    assert not any("f" * 40 in path or "/main/" in path for path, _ in hub.requests[asked:])


def test_a_full_quota_needs_no_network(hub, run, shards, tmp_path):
    run(SMALL).succeed()
    first, asked = contents(shards), len(hub.requests)
    data = DataConfig(
        repository=loopback.REPOSITORY, subset="sample", revision="main", held_out_fraction=0.2
    )
    ingestion.prepare_text(data, SMALL, shards, tmp_path / "parts", DownloadConfig())
    assert contents(shards) == first
    assert len(hub.requests) == asked
    assert {part["file"] for part in complete(tmp_path)} == {FILES[0]}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"subset": "other"}, "config key data.subset: found 'other' in somebody/text: "),
        ({"revision": "gone"}, "somebody/text, subset sample, revision gone: could not be read"),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence_without_retries(run, changes, found):
    sentence = run(**changes).fail()
    assert sentence.startswith(f"error: {found}")
    assert sentence.endswith("0 complete parts remain in " + sentence.rpartition(" ")[2])


def test_a_file_that_stays_damaged_is_one_sentence_and_keeps_the_parts_before(
    run, repository, tmp_path, shards
):
    (repository / FILES[1]).write_bytes(b"PAR1 nothing PAR1")
    sentence = run().fail()
    parts = complete(tmp_path)
    assert (
        f"error: somebody/text/{FILES[1]}: could not be read from the Hugging Face Hub after 2"
        f" retries" in sentence
    )
    assert f"; {len(parts)} complete parts remain in" in sentence
    assert {part["file"] for part in parts} == {FILES[0]}
    assert not any(shard.exists() for shard in shards)


# --- answers of the hub that are none


@pytest.mark.parametrize(
    ("name", "faults", "cause"),
    [
        *((name, [loopback.status(520)], "520") for name in CALLS),
        # the client itself asks seven times
        ("resolve", [loopback.status(429, Retry_After="0")] * 7, "429 Too Many Requests"),
    ],
)
def test_a_busy_hub_is_asked_again_and_the_log_says_what_it_answered(
    hub, call, repository, tmp_path, name, faults, cause
):
    (repository / "config.json").write_text("{}")
    (repository / "model.safetensors").write_bytes(b"weights")
    # `datasets` has read this data set before, in another program
    (tmp_path / "home/datasets/somebody___text/sample/0.0.0/0").mkdir(parents=True)
    hub.api_faults += faults
    said = call(name).succeed()
    retries = [line for line in said.splitlines() if ": retrying in" in line]
    assert retries
    assert all(cause in line for line in retries)


@pytest.mark.parametrize("name", CALLS)
def test_a_hub_that_stays_busy_is_one_sentence_with_its_answer(hub, call, name):
    hub.api_faults += [loopback.status(520)] * 9
    sentence = call(name).fail()
    assert (
        "could not be read from the Hugging Face Hub after 2 retries (HfHubHTTPError: " in sentence
    )
    assert "'520 " in sentence


@pytest.mark.parametrize("fault", [loopback.page, loopback.empty])
@pytest.mark.parametrize("name", CALLS)
def test_an_answer_of_another_server_is_one_sentence_without_retries(hub, call, name, fault):
    hub.api_faults += [fault] * 9
    sentence = call(name).fail()
    assert "could not be read from the Hugging Face Hub after 0 retries (" in sentence
    assert "not the Hub's answer; a login page?)" in sentence


@pytest.mark.parametrize("name", CALLS)
def test_offline_mode_is_one_sentence_without_retries(call, name):
    sentence = call(name, HF_HUB_OFFLINE="1").fail()
    assert "after 0 retries (" in sentence
    assert "OfflineModeIsEnabled" in sentence


def test_a_folder_with_the_name_of_the_data_set_is_not_read(run, expected, shards, tmp_path):
    folder = tmp_path / "here" / loopback.REPOSITORY / "sample/10"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"text": ["mine"]}), folder / "000.parquet")
    run()._replace(folder=tmp_path / "here").succeed()
    assert contents(shards) == expected


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_without_config_or_weights_is_refused_and_gets_no_manifest(
    call, repository, tmp_path, name
):
    (repository / name).write_bytes(b"{}")
    assert call("fetch_model").fail() == (
        f"error: somebody/text, revision main: found {name},"
        f" expected config.json and safetensors files."
    )
    assert not (tmp_path / "model/published.json").exists()
