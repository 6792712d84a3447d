"""Collecting text from a hub that fails, with the entry script and the real client in a separate process."""

import email.utils
import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.utils import glob_translate
from huggingface_hub.errors import HfHubHTTPError
from hypothesis import given
from hypothesis import strategies as st

from tests import hub as loopback
from twoscale.base import InputError
from twoscale.config import DataConfig, DownloadConfig, TextQuota, plain
from twoscale.data import hub as client
from twoscale.data import ingestion

PROJECT = Path(__file__).parents[2]
# without the settings of a user's hub client
SHELL = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
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
EVERYTHING = TextQuota("characters", None, 10**9)
SMALL = TextQuota("characters", 300, 50)
RETRIES = 3


@pytest.fixture
def repository(tmp_path):
    """A data set with two subsets; the tests use one with three files of 40 documents in row groups of 10."""
    root = tmp_path / "repository"
    for name in (*FILES, "data/other/000.parquet"):
        ids = [f"{name}-{row}" for row in range(40)]
        table = pa.table(
            {"text": [f"text of {i} " + "word " * (len(i) % 5) for i in ids], "id": ids, "score": [0.5] * 40}
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
def expected(repository, tmp_path):
    """Contents of the shards from the same files in a local folder."""
    shards = [tmp_path / f"expected/shard_{number}.parquet" for number in range(2)]
    data = DataConfig(source="parquet", path=str(repository / "sample"), held_out_fraction=0.2)
    collection = ingestion.Collection(tmp_path / "expected/parts", DownloadConfig(part_characters=10**6))
    ingestion.prepare_text(data, EVERYTHING, shards, collection)
    return [shard.read_bytes() for shard in shards]


class Run(NamedTuple):
    """One call of prepare_text."""

    command: list
    environment: dict[str, str]
    shards: list[Path]
    parts: Path

    def start(self) -> subprocess.Popen:
        return subprocess.Popen(self.command, env=self.environment, stderr=subprocess.PIPE, text=True)

    def finish(self) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def succeed(self) -> list[bytes]:
        """Contents of the shards."""
        finished = self.finish()
        assert finished.returncode == 0, finished.stderr
        return [shard.read_bytes() for shard in self.shards]

    def fail(self) -> str:
        """The one sentence; no shard is written, and no traceback."""
        finished = self.finish()
        assert finished.returncode == 1, finished.stderr
        assert "Traceback" not in finished.stderr
        assert not any(shard.exists() for shard in self.shards)
        return finished.stderr.splitlines()[-1]

    def complete(self) -> list[dict]:
        manifest = self.parts / ingestion.MANIFEST
        return json.loads(manifest.read_text())["parts"] if manifest.exists() else []


@pytest.fixture
def run(hub, tmp_path):
    """A function that returns a run with a changed config; runs share the folder of parts."""

    def make(quota=EVERYTHING, revision="main", subset="sample", variables=None) -> Run:
        data = DataConfig(repository=loopback.REPOSITORY, subset=subset, revision=revision, held_out_fraction=0.2)
        download = DownloadConfig(retries=RETRIES, delay=0.05, max_delay=0.1, timeout=0.5, part_characters=300)
        shards, parts = [tmp_path / f"out/shard_{number}.parquet" for number in range(2)], tmp_path / "parts"
        command = [sys.executable, PROJECT / "scripts/prepare_text.py"]
        command += ["--config", json.dumps({"data": plain(data), "quota": asdict(quota)})]
        command += ["--download", json.dumps({"download": plain(download)}), "--parts", parts, "--text", *shards]
        variables = {"PYTHONPATH": str(PROJECT / "src")} | hub.environment(tmp_path / "home") | (variables or {})
        return Run(command, SHELL | variables, shards, parts)

    return make


def test_the_hub_yields_the_same_bytes_as_a_folder_of_the_same_files(hub, run, expected, tmp_path):
    assert run().succeed() == expected
    assert {path for path, _ in hub.content_requests()} == {f"/store/{name}" for name in FILES}
    written = {path.name for path in tmp_path.iterdir()} - {"repository", "expected"}
    assert written == {"parts", "out"}


def test_datasets_reads_the_same_documents(hub, run, tmp_path):
    code = (
        "import datasets, json; data = datasets.load_dataset('somebody/text', 'sample', split='train', streaming=True);"
        "print(json.dumps([row['text'] for row in data]))"
    )
    environment = SHELL | hub.environment(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    ours = run()
    ours.succeed()
    assert json.loads(done.stdout) == [row["text"] for shard in ours.shards for row in pq.read_table(shard).to_pylist()]


@pytest.mark.parametrize(
    "data_files",
    [
        "a/*",
        ["a/*"],
        [{"split": "test", "path": "b/*"}, {"split": "train", "path": "a/*"}],
        [{"split": "train", "path": ["a/*"]}],
        {"split": "train", "path": "a/*"},
    ],
)
def test_every_form_of_data_files_yields_the_patterns_of_train(data_files):
    assert client.train_patterns({"config_name": "x", "data_files": data_files}) == ["a/*"]


@pytest.mark.parametrize("data_files", [[], [{"split": "test", "path": "b/*"}]])
def test_a_subset_without_a_split_train_is_refused(data_files):
    with pytest.raises(InputError, match=r"data\.subset: 'x' names no data files for the split train"):
        client.train_patterns({"config_name": "x", "data_files": data_files})


def test_only_the_files_that_the_quota_needs_are_requested_with_the_users_token(hub, run):
    run(SMALL, variables={"HF_TOKEN": "hf_abc"}).succeed()
    assert {path for path, _ in hub.content_requests()} == {f"/store/{FILES[0]}"}
    assert "Bearer hf_abc" in hub.authorizations


def test_only_the_beginning_of_a_large_file_is_requested(hub, run, repository):
    draw = random.Random(0)
    table = pa.table({"text": [draw.randbytes(50_000).hex() for _ in range(600)]})
    pq.write_table(table, repository / FILES[0], row_group_size=20)
    size = (repository / FILES[0]).stat().st_size
    run(TextQuota("characters", 2_000_000, 50)).succeed()
    ranges = [header.removeprefix("bytes=").split("-") for _, header in hub.content_requests()]
    assert sum(int(last) - int(first) + 1 for first, last in ranges) < size / 2


def test_a_larger_quota_continues_from_the_parts_and_a_smaller_one_requests_nothing(hub, run, expected):
    run(TextQuota("characters", 2000, 50)).succeed()
    hub.requests.clear()
    assert run().succeed() == expected
    assert f"/store/{FILES[0]}" not in {path for path, _ in hub.content_requests()}
    hub.requests.clear()
    run(SMALL).succeed()
    assert hub.requests == []


def test_the_users_token_is_sent_to_no_other_address_and_is_in_no_file_and_no_message(hub, run, repository, tmp_path):
    secret = {"HF_TOKEN": "hf_abc"}
    hub.api_faults += [loopback.status(401)]
    messages = run(variables=secret).fail()
    with loopback.serving(repository) as store:

        def redirect(handler):
            """Send the client to the same file at another address."""
            if "/resolve/" not in handler.route:
                return False
            _, name = handler.route.partition("/resolve/")[2].split("/", 1)
            return handler.answer(302, b"", Location=f"{store.address}/store/{name}")

        hub.api_faults += [redirect] * 100
        messages += run(variables=secret).finish().stderr
    assert store.content_requests()
    assert store.authorizations == {None}
    assert hub.authorizations == {"Bearer hf_abc"}
    assert (tmp_path / "out").is_dir()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "hf_abc" not in messages
    assert b"hf_abc" not in written


TRANSIENT = {
    "burst of server errors": [loopback.status(500), loopback.status(503), loopback.status(502)],
    "reset in mid-range": [loopback.nothing, loopback.nothing, loopback.reset],
    "truncated body": [loopback.nothing, loopback.truncate, loopback.nothing, loopback.truncate],
    "short answer that claims to be complete": [loopback.nothing, loopback.nothing, loopback.short],
    "stall": [loopback.nothing, loopback.nothing, loopback.stall(1.0)],
}


@pytest.mark.parametrize("faults", TRANSIENT.values(), ids=TRANSIENT.keys())
def test_transient_faults_change_no_byte(hub, run, expected, faults):
    hub.faults += faults
    finished = run().finish()
    assert finished.returncode == 0, finished.stderr
    assert [shard.read_bytes() for shard in run().shards] == expected
    assert "retrying in" in finished.stderr
    assert hub.faults == []


def retry_after_date(handler):
    """Send a date, in whole seconds, that is at least one second away."""
    until = email.utils.formatdate(time.time() + 2, usegmt=True)
    loopback.status(429, Retry_After=until)(handler)


@pytest.mark.parametrize("fault", [loopback.status(429, Retry_After="1"), retry_after_date], ids=["seconds", "date"])
def test_the_delay_is_at_least_what_the_hub_requests(hub, run, fault):
    moments = []
    note = loopback.calling(lambda: moments.append(time.monotonic()))
    hub.faults += [note, fault, note]
    run(SMALL).succeed()
    assert moments[1] - moments[0] >= 1.0


def test_an_invalid_retry_after_is_ignored(hub, run, expected):
    hub.faults += [loopback.nothing, loopback.status(503, Retry_After="soon")]
    assert run().succeed() == expected


def test_transient_faults_of_the_first_request_change_no_byte(hub, run, expected):
    hub.api_faults += [loopback.status(503), loopback.status(429, Retry_After="0")]
    assert run().succeed() == expected


def test_a_permanent_fault_ends_in_one_sentence_and_the_next_run_continues(hub, run, expected):
    hub.faults += [loopback.nothing] * 4 + [loopback.status(500)] * (RETRIES + 1)
    assert "001.parquet: could not be read from the Hugging Face Hub after up to 3 retries" in run().fail()
    kept = run().complete()
    assert {part["file"] for part in kept} == {FILES[0]}
    assert kept[-1]["end"] == 40
    hub.requests.clear()
    assert run().succeed() == expected
    assert run().complete()[: len(kept)] == kept
    assert len([1 for path, _ in hub.content_requests() if path.endswith("000.parquet")]) <= 2  # size and footer


@pytest.mark.parametrize("request_number", [2, 7])
def test_a_killed_run_loses_and_repeats_no_document(hub, run, expected, request_number):
    killed = run()
    hub.faults += [loopback.nothing] * request_number + [loopback.calling(lambda: process.kill())]
    process = killed.start()
    process.communicate(timeout=60)
    assert process.returncode == -9
    kept = killed.complete()
    assert run().succeed() == expected
    assert run().complete()[: len(kept)] == kept


@pytest.mark.runs
def test_repeated_kills_while_parts_are_written_change_no_byte(run, expected):
    for number in range(1, 4):
        process = run().start()
        deadline = time.monotonic() + 30
        while len(list(run().parts.glob("part_*.parquet"))) < 4 * number and time.monotonic() < deadline:
            if process.poll() is not None:
                break
        process.kill()
        process.communicate()
    assert run().succeed() == expected


def test_a_file_that_is_replaced_between_requests_is_refused(hub, run, repository):
    def replace() -> None:
        path = repository / FILES[1]
        path.write_bytes(path.read_bytes().replace(b"word", b"WORD"))

    hub.faults += [loopback.nothing] * 4 + [loopback.calling(replace)]
    sentence = run().fail()
    assert "001.parquet: found version" in sentence
    assert "the file was replaced" in sentence
    assert {part["file"] for part in run().complete()} == {FILES[0]}


def test_a_file_that_is_replaced_between_runs_is_refused(run, repository):
    run(SMALL).succeed()
    for shard in run().shards:
        shard.unlink()
    path = repository / FILES[0]
    path.write_bytes(path.read_bytes().replace(b"word", b"WORD"))
    assert "000.parquet: found version" in run().fail()
    assert run().complete()


def test_a_branch_that_moves_between_runs_is_read_at_its_first_commit(hub, run, expected):
    run(SMALL).succeed()
    hub.revisions["main"] = "f" * 40
    assert run().succeed() == expected
    assert not any("f" * 40 in path for path, _ in hub.requests)


def test_a_damaged_file_is_named_and_earlier_parts_are_kept(run, repository):
    content = bytearray((repository / FILES[2]).read_bytes())
    content[20:200] = bytes(180)
    (repository / FILES[2]).write_bytes(content)
    assert "002.parquet: cannot be read as a parquet file" in run().fail()
    assert {part["file"] for part in run().complete()} == set(FILES[:2])


def test_a_damaged_part_is_collected_again(run, expected):
    run().succeed()
    part = run().parts / "part_00002.parquet"
    part.write_bytes(part.read_bytes()[:-1])
    assert run().succeed() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"revision": "gone"}, "RevisionNotFoundError"),
        (
            {"subset": "other"},
            "data.subset: found 'other', expected one of the subsets of somebody/text: default, sample",
        ),
    ],
)
def test_a_missing_revision_or_subset_is_reported_after_one_request(hub, run, changes, message):
    assert message in run(**changes).fail()
    assert len(hub.requests) == 1


class Flood:
    """A fault that sends up to a gigabyte, and the bytes that it sent until the client hung up."""

    def __init__(self, code=200, **headers):
        self.code, self.headers, self.sent = code, {name.replace("_", "-"): v for name, v in headers.items()}, 0

    def __call__(self, handler):
        handler.head(self.code, 10**9, **self.headers)
        handler.close_connection = True
        while self.sent < 10**9:
            self.sent += handler.wfile.write(bytes(2**20))


@pytest.mark.parametrize("code", [200, 403])
def test_a_response_that_is_longer_than_requested_is_cut_off_and_not_repeated(hub, run, code):
    flood = Flood(code)
    hub.faults += [loopback.nothing, loopback.nothing, flood]
    assert "000.parquet: could not be read from the Hugging Face Hub" in (sentence := run().fail())
    assert "the most that this response may have" in sentence
    assert flood.sent < 50e6  # the range, and what the buffers of the system hold
    assert len(hub.content_requests()) == 3


def test_a_redirect_and_a_listing_without_end_are_cut_off(hub, run):
    for code in (302, 200):
        flood = Flood(code, Location=f"{hub.address}/elsewhere")
        hub.api_faults += [flood]
        assert "the most that this response may have" in run().fail()
        assert flood.sent < client.MAX_RESPONSE + 50e6


@pytest.mark.parametrize("code", [200, 206])
def test_a_server_that_ignores_ranges_is_refused_at_once(hub, run, code):
    hub.faults += [lambda handler: handler.answer(code, bytes(5000), ETag='"whole"')]
    assert f"status {code} with 5000 bytes, expected 206 with 1" in run().fail()
    assert len(hub.content_requests()) == 1


def test_a_compressed_response_is_refused(hub, run):
    hub.faults += [lambda handler: handler.answer(206, bytes(1), **{"Content-Encoding": "gzip"})]
    assert "found the content encoding gzip, expected none" in run().fail()


def listing(names, card=None):
    """A fault that answers the first request with these names of files."""
    card = card or {"configs": [{"config_name": "sample", "data_files": "sample/**"}]}
    info = {"_id": "0", "id": loopback.REPOSITORY, "sha": loopback.COMMIT, "cardData": card}
    content = json.dumps(info | {"siblings": [{"rfilename": name} for name in names]}).encode()
    return lambda handler: handler.answer(200, content)


UNSAFE = [
    "sample/../../../other/secret.parquet",
    "/etc/passwd.parquet",
    "sample//a.parquet",
    "sample/./a.parquet",
    "sample/..\\a.parquet",
    "sample/\x1b]0;title\x07.parquet",
    "sample/\u202egpj.parquet",
    "sample/a\nerror: all is well.parquet",
    "sample/\x00.parquet",
]


@pytest.mark.parametrize("name", UNSAFE)
def test_a_name_that_leaves_the_repository_or_has_controls_is_refused(name):
    with pytest.raises(InputError, match="what: found a file named ") as raised:
        client.checked_names("what", ["a.parquet", name])
    assert str(raised.value).isprintable()


def test_a_file_outside_the_repository_is_not_requested(hub, run):
    hub.api_faults += [listing(["sample/a.parquet", UNSAFE[0]])]
    assert f"error: somebody/text, subset sample, revision main: found a file named {UNSAFE[0]!r}" in run().fail()
    assert hub.content_requests() == []


def test_names_of_subsets_cannot_control_the_terminal(hub, run):
    hub.api_faults += [listing([], {"configs": [{"config_name": "\x1b[2J\nerror: fine \u202e", "data_files": "*"}]})]
    sentence = run().fail()
    assert sentence.isprintable()
    assert sentence.startswith("error: config key data.subset: found 'sample', expected one of the subsets")


@pytest.mark.parametrize("pattern", ["*a" * 11 + "b", "sample/" + "**/" * 30 + "b", "[a-z]*" * 200 + "!"])
def test_a_pattern_with_many_wildcards_takes_no_time(pattern):
    started = time.monotonic()
    assert not client.matches("sample/" + "a" * 60, pattern)
    assert not client.matches("a" * 60, pattern)
    assert not client.matches("a/" * 60 + "a", pattern)
    assert time.monotonic() - started < 2


def test_very_many_patterns_are_refused():
    patterns = [f"{number}*" for number in range(client.MAX_GLOBS + 1)]
    with pytest.raises(InputError, match=r"data\.subset: found 101 patterns with wildcards"):
        client.matching(["a"], patterns)
    assert client.matching(["b", "a"], ["a", "b", "c"] * 1000) == ["a", "b"]


PATHS = st.lists(st.sampled_from(["a", "b", "ab", "aab", "a.b", "[a]"]), min_size=1, max_size=4).map("/".join)
PARTS = ["*", "**", "a", "a*", "*b", "?", "a?b", "[ab]*", "[!a]*", "*.b", "a*b"]
PATTERNS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join)


@given(PATHS, PATTERNS)
def test_patterns_mean_what_they_mean_in_fsspec(path, pattern):
    assert client.matches(path, pattern) == bool(re.match(glob_translate(pattern), path))


def test_offline_mode_is_respected(hub, run):
    assert "OfflineModeIsEnabled" in run(variables={"HF_HUB_OFFLINE": "1"}).fail()
    assert hub.requests == []


@pytest.mark.parametrize("configs", [[1], {"config_name": "sample"}, [{"data_files": "*"}], [{"config_name": 3}], "a"])
def test_a_card_of_another_form_ends_in_one_sentence(configs):
    with pytest.raises(InputError, match="expected a list with the config_name and the data_files of each subset"):
        client.card_subsets("somebody/text", configs)


@pytest.mark.parametrize("data_files", [None, 3, [1], {"split": "train"}, [{"path": 3}], {"path": None}])
def test_data_files_of_another_form_end_in_one_sentence(data_files):
    with pytest.raises(InputError, match=r"config key data\.subset: .a. names"):
        client.train_patterns({"config_name": "a", "data_files": data_files})


def test_a_token_with_other_characters_ends_in_one_sentence_without_it(hub, run):
    sentence = run(variables={"HF_TOKEN": "hf_sécret"}).fail()
    assert "(HF_TOKEN): found a character that is not ASCII" in sentence
    assert "cret" not in sentence


def refusal(status, **headers):
    """An error of the client with a status and headers."""
    request = httpx2.Request("GET", "http://hub")
    return HfHubHTTPError("refused", response=httpx2.Response(status, headers=headers, request=request))


def test_only_statuses_that_may_change_are_transient():
    transient = [status for status in range(400, 600) if client._is_transient(refusal(status))]
    assert transient == [408, 425, 429, 500, 502, 503, 504]


@pytest.mark.parametrize("retries", [0, 3])
def test_a_request_is_tried_once_more_than_it_is_repeated_with_delays_that_double_up_to_a_limit(retries, monkeypatch):
    attempts, delays = [], []
    monkeypatch.setattr(time, "sleep", delays.append)

    def request():
        attempts.append(1)
        raise client.ShortResponseError("found 1 byte, expected 2")

    with pytest.raises(client.ShortResponseError):
        client.with_retries(request, DownloadConfig(retries=retries, delay=1.0, max_delay=3.0))
    assert (len(attempts), delays) == (retries + 1, [1.0, 2.0, 3.0][:retries])


def test_the_time_that_a_server_asks_for_is_at_most_an_hour_and_never_negative(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    dates = {seconds: email.utils.formatdate(1_000_000_000 + seconds, usegmt=True) for seconds in (-50, 40, 9000)}
    values = {"7": 7.0, "9000": 3600.0, "soon": 0.0, dates[-50]: 0.0, dates[40]: 40.0, dates[9000]: 3600.0}
    assert {value: client._retry_after(refusal(503, **{"Retry-After": value})) for value in values} == values
    assert client._retry_after(refusal(503)) == 0.0
    assert client._retry_after(client.ShortResponseError()) == 0.0


def test_a_bounded_stream_yields_the_bytes_up_to_its_limit_and_closes_what_it_reads():
    class Stream(httpx2.SyncByteStream):
        closed = False

        def __iter__(self):
            yield from (b"ab", b"cd")

        def close(self):
            self.closed = True

    stream = Stream()
    bounded = client._BoundedStream(stream, 4)
    assert list(bounded) == [b"ab", b"cd"]
    bounded.close()
    assert stream.closed
    with pytest.raises(client.WrongResponseError, match="found more than 3 bytes"):
        list(client._BoundedStream(stream, 3))


def test_a_hundred_patterns_are_not_too_many():
    assert client.matching(["7x"], [f"{number}*" for number in range(100)]) == ["7x"]


def test_what_a_server_may_send_is_limited_to_known_sizes():
    limits = (client.MAX_RANGE, client.MAX_RESPONSE, client.ERROR_BYTES, client.MAX_GLOBS, client.BUFFER)
    assert limits == (8 * 1024**2, 128 * 1024**2, 64 * 1024, 100, 4 * 1024**2)


@pytest.mark.parametrize("siblings", [None, [], [SimpleNamespace(rfilename="data/0.parquet")]])
def test_a_repository_may_list_no_files(siblings):
    info = SimpleNamespace(sha="0" * 40, siblings=siblings)
    assert client.with_form(info) is info


def test_names_of_files_that_are_no_text_are_refused():
    with pytest.raises(ValueError, match="str"):
        client.with_form(SimpleNamespace(sha="0" * 40, siblings=[SimpleNamespace(rfilename=7)]))
