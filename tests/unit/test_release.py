"""Releases: what is read of a folder or an address, and what is refused."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import web
from tests.fuzzing import assert_read_or_refused, json_bytes, several, try_all
from tests.small import ROOT
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import DownloadConfig, preset
from twoscale.discovery import study_parts
from twoscale.figures.catalogue import Figure, figures, table
from twoscale.report import snapshot
from twoscale.report.release import MAX_MANIFEST, Release
from twoscale.workflow.runs import Runs

ONCE = DownloadConfig(retries=0, delay=0.0, max_delay=0.0, timeout=5.0)
LOOPS = "tiny/tables/training_loops.parquet"
DRIFT = "tiny/tables/drift.parquet"
TRAINING = "tiny/tables/training.parquet"
DEMO = ROOT / "docs" / "demo-release"


def config_of(**sections):
    """The config in a manifest: every key of the tiny preset."""
    return preset("tiny") | sections


def release(folder: Path, files=(), **facts) -> Path:
    """A release of a run with two tables, a page and further files: (name, bytes)."""
    results = folder / "results"
    loops = pd.DataFrame({"iteration": [1, 1], "group": ["2", "3"], "loops": [3, 4]})
    training = {key: [1.0] for key in tables.columns("training")} | {"iteration": [1], "tokens_seen": [128]}
    tables.write("training_loops", loops, results / LOOPS)
    tables.write("training", pd.DataFrame(training), results / TRAINING)
    for name, content in {"claims.md": b"# Claims\n", **dict(files)}.items():
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_bytes(content)
    names = [path for path in results.rglob("*") if path.is_file()]
    snapshot.write(folder / "release", names, results, {"run": "tiny", "config": config_of()} | facts)
    return folder / "release"


def opened(place) -> Release:
    return Release.open(str(place), ONCE)


def refused(action, match):
    """The InputError of `action`, which is one sentence."""
    with pytest.raises(InputError, match=match) as error:
        action()
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_the_tables_of_a_release_are_those_of_its_manifest_and_nothing_else_of_it(tmp_path):
    folder = release(tmp_path, [("tiny/states.safetensors", b"states"), ("fig2.svg", b"<svg/>")])
    found = opened(folder)
    assert list(found.tables) == [TRAINING, LOOPS]
    assert found.read(LOOPS) == (folder / LOOPS).read_bytes()
    found.fetch(TRAINING, tmp_path / "here.parquet")
    assert tables.read("training", tmp_path / "here.parquet")["tokens_seen"].tolist() == [128]
    assert found.table("tiny", "training_loops", tmp_path)["loops"].tolist() == [3, 4]
    refused(lambda: found.table("tiny", "drift", tmp_path), f"found no entry for the file {DRIFT}")


@pytest.mark.parametrize("name", ["../a/tables/b.parquet", "/a/tables/b.parquet", "a/b/c/tables/d.parquet", "..\\b"])
def test_a_name_that_leaves_the_release_is_no_table(tmp_path, name):
    folder = release(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"][LOOPS]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert list(opened(folder).tables) == [TRAINING, LOOPS]


@pytest.mark.parametrize("changes", ["one byte", "shorter", "longer", "missing"])
def test_a_table_that_is_not_that_of_the_manifest_is_refused(tmp_path, changes):
    folder = release(tmp_path)
    content = (folder / LOOPS).read_bytes()
    if changes == "missing":
        (folder / LOOPS).unlink()
    else:
        bytes_ = {"one byte": bytes([content[0] ^ 1]) + content[1:], "shorter": content[:-1], "longer": content + b"x"}
        (folder / LOOPS).write_bytes(bytes_[changes])
    expected = {"missing": "cannot be read", "longer": "expected at most"}.get(
        changes, "SHA-256 .*, as manifest.json says"
    )
    refused(lambda: opened(folder).fetch(LOOPS, tmp_path / "here.parquet"), f"{re.escape(LOOPS)}: .*{expected}")
    assert not (tmp_path / "here.parquet").exists()


def test_a_table_that_is_said_to_be_very_large_is_not_read(tmp_path, monkeypatch):
    found = opened(release(tmp_path))
    monkeypatch.setattr("twoscale.report.release.MAX_TABLE", 10)
    monkeypatch.setattr(Path, "open", None)
    refused(
        lambda: found.read(LOOPS),
        r"loops\.parquet: found a size of \d+ bytes stated in manifest.json, expected at most 10",
    )


def test_a_file_with_the_right_digest_that_is_no_table_is_refused(tmp_path):
    folder = release(tmp_path, [("tiny/tables/drift.parquet", b"nothing")])
    refused(
        lambda: opened(folder).read("tiny/tables/drift.parquet"), "drift.parquet: cannot be read as a parquet table"
    )


@pytest.mark.parametrize("file", ["manifest.json", LOOPS])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path, file):
    folder = release(tmp_path)
    found = opened(folder)
    (folder / file).unlink()
    os.mkfifo(folder / file)
    refused(lambda: opened(folder) if file == "manifest.json" else found.read(file), "found no regular file")


@pytest.mark.parametrize(
    "text",
    ["<script>", "$\\bad$", "\x1b[2J", "two\nlines", "x" * 101],
    ids=["HTML", "TeX", "terminal", "lines", "long"],
)
def test_texts_in_a_table_are_names(tmp_path, text):
    loops = pd.DataFrame({"iteration": [1], "group": [text], "loops": [3]})
    tables.write("training_loops", loops, tmp_path / "there.parquet")
    name = "tiny/tables/lens.parquet"
    folder = release(tmp_path, [(name, (tmp_path / "there.parquet").read_bytes())])
    refused(lambda: opened(folder).read(name), r"lens.parquet: found '.*' in the column 'group', expected a name")


@pytest.mark.parametrize(("text", "accepted"), [("95 % of it; not < 3!", True), ("<b>", False), ("$x$", False)])
def test_verdicts_have_reasons_in_sentences(tmp_path, text, accepted):
    found = {name: [text if name == "reason" else None] for name in tables.columns("claims")}
    tables.write("claims", pd.DataFrame(found | {"claim": [1]}), tmp_path / "there.parquet")
    name = "tiny/tables/claims.parquet"
    there = opened(release(tmp_path, [(name, (tmp_path / "there.parquet").read_bytes())]))
    if accepted:
        assert there.table("tiny", "claims", tmp_path)["reason"].tolist() == [text]
    else:
        refused(lambda: there.read(name), "in the column 'reason', expected a sentence without control characters")


def test_a_column_of_lists_is_refused(tmp_path):
    pq.write_table(pa.table({"a": [["x"]]}), tmp_path / "there.parquet")
    folder = release(tmp_path, [(DRIFT, (tmp_path / "there.parquet").read_bytes())])
    refused(lambda: opened(folder).read(DRIFT), "found the column 'a' of type list")


@pytest.mark.parametrize("name", ["<script>x", "a\x1b[2J", "$x^2$", "a" * 101])
def test_the_name_of_a_column_is_a_name(tmp_path, name):
    pq.write_table(pa.table({name: [1.0]}), tmp_path / "there.parquet")
    folder = release(tmp_path, [(DRIFT, (tmp_path / "there.parquet").read_bytes())])
    refused(lambda: opened(folder).read(DRIFT), r"drift\.parquet: found the column .*, expected a name without markup")


@pytest.mark.parametrize("name", [LOOPS, "manifest.json"])
def test_a_link_out_of_the_release_is_not_followed(tmp_path, name):
    folder = release(tmp_path)
    outside = (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(outside)
    refused(lambda: opened(folder).read(LOOPS), r"found a link that leads out of the release, expected a file in")


def test_links_in_a_circle_are_refused(tmp_path):
    folder = release(tmp_path)
    (folder / LOOPS).unlink()
    (folder / LOOPS).symlink_to(folder / LOOPS)
    refused(lambda: opened(folder).read(LOOPS), "cannot be read")


def test_a_release_in_the_cache_of_the_hub_consists_of_links(tmp_path):
    (tmp_path / "snapshots").mkdir()
    folder = release(tmp_path).rename(tmp_path / "snapshots" / "1a2b")
    (tmp_path / "blobs").mkdir()
    for number, name in enumerate([LOOPS, "manifest.json"]):
        (folder / name).symlink_to((folder / name).rename(tmp_path / "blobs" / str(number)))
    assert opened(folder).read(LOOPS)


def test_a_config_of_very_many_values_is_refused_before_they_are_checked(tmp_path):
    exits = config_of()["exits"]
    many = exits["criteria"] | {"kl": {"thresholds": list(range(1, 100_001))}}
    folder = release(tmp_path, config=config_of(exits=exits | {"criteria": many}))
    started = time.monotonic()
    refused(lambda: runs(folder), r"manifest\.json: found \d+ values in the config, expected at most 10000")
    assert time.monotonic() - started < 5.0


def test_an_architecture_of_a_released_config_imports_no_other_module_of_the_library(tmp_path):
    config = config_of()
    config["model"] |= {"architecture": "registry"}
    code = (
        "import sys; from twoscale.report.release import Release; from twoscale.config import DownloadConfig;"
        "from twoscale.base import InputError\n"
        "try: Release.open(sys.argv[1], DownloadConfig()).runs({})\n"
        "except InputError as error: print(error, 'torch' in sys.modules, 'twoscale.model.registry' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(release(tmp_path, config=config))]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert re.search(r"config key model\.architecture: found .*registry.* False False\n$", found)


def test_a_config_of_very_many_runs_is_refused_before_they_are_planned(tmp_path):
    folder = release(tmp_path, config=config_of(seeds=list(range(3000))))
    refused(lambda: runs(folder), r"manifest\.json: found \d+ combinations of seeds .*, expected at most 2000")


def test_a_release_may_have_as_many_combinations_as_the_limit_says(tmp_path, monkeypatch):
    studies, config = study_parts("runs"), config_of()
    monkeypatch.setattr("twoscale.report.release.MAX_COMBINATIONS", 3 * (1 + len(studies)))
    for study in studies:
        config[study] = {k: value[:1] if isinstance(value, list) else value for k, value in config[study].items()}
    assert runs(release(tmp_path / "three", config=config | {"seeds": [1, 2, 3]})).selected == "tiny"
    folder = release(tmp_path / "four", config=config | {"seeds": [1, 2, 3, 4]})
    refused(lambda: runs(folder), f"found {4 * (1 + len(studies))} combinations")


def bomb(kind: str) -> bytes:
    """A small file whose rows would take gigabytes: one string of a megabyte, or one null, repeated by its encoding."""
    repeated = pa.DictionaryArray.from_arrays(np.zeros(3000, np.int32), pa.array(["x" * 2**20]))
    column = {"strings": repeated, "nulls": pa.nulls(2 * 10**8, pa.bool_())}[kind]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": column}), buffer, compression="zstd")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["strings", "nulls"])
def test_a_small_file_of_a_table_for_which_memory_is_too_small_is_refused(tmp_path, kind):
    content = bomb(kind)
    assert len(content) < 10**6
    folder = release(tmp_path, [(DRIFT, content)])
    refused(lambda: opened(folder).read(DRIFT), r"drift.parquet: found a table of up to 3\.\d GB")


NO_PLACES = [None, 3, "", "ftp://host/folder", "https://host/folder?token=1", "file:///etc"]


@pytest.mark.parametrize("place", [*NO_PLACES, "https://me:secret@host/folder", "https://host/a folder\x07"])
def test_a_place_that_is_no_folder_and_no_address_is_refused(place):
    refused(lambda: Release.open(place, ONCE), "config key release: found")


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    refused(lambda: opened(tmp_path), r"manifest.json: cannot be read \(.*\), expected a file of released tables\.")
    (tmp_path / "config.json").touch()
    refused(lambda: opened(tmp_path), r"expected a file of released tables\.$")
    (tmp_path / "model.safetensors").touch()
    refused(lambda: opened(tmp_path), r"released tables; this release has a model and no tables\.")


def test_a_manifest_of_megabytes_is_refused_unread(tmp_path):
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(MAX_MANIFEST + 1)
    refused(lambda: opened(tmp_path), "manifest.json: found 4194305 bytes, expected at most 4194304")


@pytest.fixture
def served(tmp_path):
    with web.serving(release(tmp_path)) as server:
        yield server


def test_a_release_at_an_address_is_read_as_one_in_a_folder(served, tmp_path):
    assert opened(f"{served.address}/").read(LOOPS) == (tmp_path / "release" / LOOPS).read_bytes()
    assert served.requests == ["/manifest.json", f"/{LOOPS}"]


def test_the_token_of_the_hub_is_not_sent_to_another_server(served, tmp_path):
    code = (
        "import sys; from twoscale.report.release import Release; from twoscale.config import DownloadConfig;"
        f"Release.open(sys.argv[1], DownloadConfig()).read({LOOPS!r})"
    )
    shell = os.environ | {"HF_TOKEN": "hf_secret", "HF_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", code, served.address], check=True, env=shell, timeout=120)
    assert len(served.headers) == 2
    assert "secret" not in str(served.headers)


def test_a_transient_error_is_repeated_and_a_permanent_one_is_one_sentence(served):
    served.faults = [web.status(503)]
    patient = DownloadConfig(retries=1, delay=0.0, max_delay=0.0, timeout=5.0)
    assert Release.open(served.address, patient).manifest.run == "tiny"
    served.faults = [web.status(404)]
    refused(lambda: Release.open(served.address, patient), r"manifest\.json: could not be read after up to 1 retries")
    assert len(served.requests) == 3


@pytest.mark.parametrize(
    "fault",
    [web.endless, web.content(gzip.compress(bytes(10**6)), Content_Encoding="gzip"), web.content(bytes(10**5))],
    ids=["endless", "compressed", "longer than its manifest says"],
)
def test_an_answer_larger_than_the_manifest_says_is_refused_without_being_read_whole(served, fault):
    found = opened(served.address)
    served.faults = [fault]
    refused(lambda: found.read(LOOPS), r"training_loops\.parquet: could not be read")


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(served, monkeypatch):
    monkeypatch.setattr("twoscale.report.release.SLOWEST", MAX_MANIFEST)
    ended = Event()

    def slowly(handler):
        handler.send_response(200)
        handler.end_headers()
        while not ended.wait(0.05):
            handler.wfile.write(b" ")

    served.faults = [slowly]
    hurried = DownloadConfig(retries=0, delay=0.0, max_delay=0.0, timeout=0.1)
    refused(
        lambda: Release.open(served.address, hurried), r"manifest\.json: found no complete answer within 2 s, expected"
    )
    ended.set()


def test_an_address_without_a_server_is_one_sentence():
    refused(lambda: opened("http://127.0.0.1:9/release"), r"http://127\.0\.0\.1:9/release/manifest\.json: could not be")


@several
def test_a_manifest_is_read_or_refused(tmp_path, cases):
    digest = hashlib.sha256(b"{}").hexdigest()
    valid = {"run": "tiny", "config": config_of(), "files": {LOOPS: {"bytes": 2, "sha256": digest}}}
    path = tmp_path / LOOPS
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{}")

    def read(content: bytes) -> None:
        (tmp_path / "manifest.json").write_bytes(content)
        found = opened(tmp_path)
        try_all(lambda: found.runs({}), *(lambda name=name: found.read(name) for name in found.tables))

    assert_read_or_refused(json_bytes(valid | {"config": {"seed": 1}}), read, cases)


def runs(place, **config) -> Runs:
    return Runs({"preset": "demo", "release": str(place)} | config, ROOT / "scripts")


def test_the_config_is_that_of_the_manifest_with_the_users_figures(tmp_path):
    mine = runs(release(tmp_path), seed=3, figures={"fig1_tokens": 2}, run="other")
    assert (mine.selected, mine.config.seed, mine.config.figures.fig1_tokens) == ("tiny", 1337, 2)
    assert mine.config.train.iterations == preset("tiny")["train"]["iterations"]


def test_figures_read_released_tables_and_those_without_are_left_out(tmp_path):
    mine = runs(release(tmp_path))
    by_name = {figure.name: figure for figure in figures()}
    assert mine.report.figure_inputs(Figure("mine", table("training", "training_loops"))) == {
        "training": [f"results/released/{TRAINING}"],
        "training_loops": [f"results/released/{LOOPS}"],
    }
    assert (mine.report.figure_files("all"), mine.report.claims, mine.report.results({})) == ([], [], [])
    refused(lambda: mine.report.figure_inputs(by_name["fig2"])["drift"]({}), "has no tiny/tables/drift.parquet")


def test_python_files_that_a_manifest_names_are_not_opened(tmp_path):
    criterion = {"thresholds": [0.1], "file": str(tmp_path / "gone.py"), "class": "Mine"}
    exits = config_of()["exits"]
    config = config_of(exits=exits | {"criteria": exits["criteria"] | {"mine": criterion}})
    assert "mine" in runs(release(tmp_path, config=config)).config.exits.criteria


def test_a_published_model_and_a_wrong_key_are_refused_with_the_name_of_the_manifest(tmp_path):
    folder = release(tmp_path / "a", config=config_of(seed="one"))
    refused(lambda: runs(folder), r"manifest\.json: config key seed")
    published = config_of()
    published["model"] |= {"source": "published", "folder": "/nowhere"}
    folder = release(tmp_path / "b", config=published | {"tokenizer": {"name": "published"}})
    refused(lambda: runs(folder), r"manifest\.json: found a published model, expected a run trained here")


def test_the_release_of_the_demo_is_intact_and_small():
    manifest = json.loads((DEMO / "manifest.json").read_text())
    names = {path.relative_to(DEMO).as_posix() for path in DEMO.rglob("*") if path.is_file()}
    assert names == {*manifest["files"], "manifest.json"}
    assert sum((DEMO / name).stat().st_size for name in names) <= 4 * 10**6
    for name, facts in manifest["files"].items():
        content = (DEMO / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}, name
    found = runs(DEMO)
    assert len(found.report.results({})) == 6
