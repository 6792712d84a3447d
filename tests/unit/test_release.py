"""Released tables: snapshots and their manifest, what is read of a folder or an address, and what
is refused.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests import web
from tests.small import ROOT
from twoscale import tables
from twoscale.base import InputError
from twoscale.config import Config, DownloadConfig, preset, user_values
from twoscale.figures.catalogue import Figure, figures, inputs_from
from twoscale.jobs import machine
from twoscale.report import release as releases
from twoscale.report.release import Release
from twoscale.workflow.runs import Runs

ONCE = DownloadConfig(timeout=5.0)
LOOPS = "tiny/tables/training_loops.parquet"
TRAINING = "tiny/tables/training.parquet"
DEMO = ROOT / "docs" / "demo-release"


def config_of(**sections):
    """The config in a manifest: every key of the tiny preset."""
    return preset("tiny") | sections


@pytest.fixture
def results(tmp_path):
    """The results of a run: two tables and a page."""
    folder = tmp_path / "results"
    loops = pd.DataFrame({"iteration": [1, 1], "group": ["2", "3"], "loops": [3, 4]})
    training = {key: [1.0] for key in tables.columns("training")} | {
        "iteration": [1],
        "tokens_seen": [128],
    }
    tables.write("training_loops", loops, folder / LOOPS)
    tables.write("training", pd.DataFrame(training), folder / TRAINING)
    (folder / "claims.md").write_text("# Claims\n")
    return folder


@pytest.fixture
def release(results, tmp_path):
    """A release of the run: `release(facts of its manifest)` is its folder."""

    def made(**facts) -> Path:
        names = [path for path in results.rglob("*") if path.is_file()]
        facts = {"run": "tiny", "config": config_of()} | facts
        releases.write_snapshot(tmp_path / "release", names, results, facts)
        return tmp_path / "release"

    return made


def opened(place) -> Release:
    return Release.open(str(place), ONCE)


def runs(place, **config) -> Runs:
    return Runs({"preset": "demo", "release": str(place)} | config, ROOT / "scripts")


# --- snapshots ------------------------------------------------------------------------------------


def test_files_keep_their_paths_and_the_manifest_has_their_digests(results, release, tmp_path):
    folder = release(config={})
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"]["claims.md"] == {
        "bytes": 9,
        "sha256": hashlib.sha256(b"# Claims\n").hexdigest(),
    }
    assert set(manifest["files"]) == {"claims.md", LOOPS, TRAINING}
    assert (folder / LOOPS).read_bytes() == (results / LOOPS).read_bytes()
    first = (folder / "manifest.json").read_bytes()
    assert (release(config={}) / "manifest.json").read_bytes() == first


def test_the_commit_is_that_of_the_checkout_and_says_whether_files_were_changed(tmp_path):
    assert releases.checkout(tmp_path) == {"commit": None, "modified": None}
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = releases.checkout(tmp_path)
    assert len(found["commit"]) == 40
    assert found["modified"] is False
    (tmp_path / "file").write_text("2")
    assert releases.checkout(tmp_path) == found | {"modified": True}


def test_hours_of_training_are_those_of_its_iterations_and_environments_are_named_where_they_change(
    tmp_path,
):
    log = pd.DataFrame(
        {"iteration": [1, 2], "tokens_seen": [3600, 7200], "tokens_per_s": [1.0, 0.5]}
    )
    first, second = {"first_iteration": 1, "threads": 2}, {"first_iteration": 9, "threads": 4}
    segments = []
    for number, environments in enumerate(([first], [first | {"first_iteration": 5}, second])):
        segments.append(tmp_path / f"{number}.parquet")
        with tables.writing(
            "training", segments[-1], metadata={machine.ENVIRONMENTS: json.dumps(environments)}
        ):
            pass
    expected = {"iterations": 2, "tokens": 7200, "hours": 3.0, "environments": [first, second]}
    assert releases.training_cost(log, segments) == expected
    assert releases.versions()["pandas"] == pd.__version__


HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def benchmark(folder, name, seconds, memory, processor):
    path = folder / f"{name}.tsv"
    path.write_text(f"{HEADER}{seconds}\t0:00:05\t{memory}\t0\t0\t0\t0\t0\t0\t{processor}\n")
    return path


def test_jobs_of_a_rule_add_up_and_the_longest_rule_comes_first(tmp_path):
    files = [
        benchmark(tmp_path, "init_model", 5, 100, 4),
        benchmark(tmp_path, "train_segment_000010", 10, 300, 8),
        benchmark(tmp_path, "train_segment_000020", 30, 200, 9),
        benchmark(tmp_path, "quality.exit.kl", 3, "-", "NA"),  # ended before it was measured
    ]
    found = releases.runtimes(files)
    assert found["rule"].tolist() == ["train_segment", "init_model", "quality"]
    assert found.iloc[0].to_list() == ["train_segment", 2, 40, 30, 17, 300]
    assert found["total_s"].tolist() == [40, 5, 3]
    assert list(releases.runtimes([]).columns) == list(found.columns)


# --- reading a release ----------------------------------------------------------------------------


def fetched(source, tmp_path, name=LOOPS) -> bytes:
    release = opened(source)
    releases.fetch(release.source, name, release.tables[name], tmp_path / "here.parquet", ONCE)
    return (tmp_path / "here.parquet").read_bytes()


def test_an_earlier_release_without_costs_has_an_empty_table_of_them(results, release, tmp_path):
    folder = "tiny/tables"
    (results / folder / "exit_latency.parquet").write_bytes((results / LOOPS).read_bytes())
    source, name = opened(release()), f"{folder}/exit_costs.parquet"
    assert source.tables[name] is None
    copy = tmp_path / "exit_costs.parquet"
    releases.fetch(source.source, name, source.tables[name], copy, ONCE)
    assert tables.read("exit_costs", copy).empty


def test_the_tables_of_a_release_are_read_from_a_folder_or_an_address(
    release, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    folder = release()
    assert list(opened(folder).tables) == [TRAINING, LOOPS]
    assert fetched(folder, tmp_path) == (folder / LOOPS).read_bytes()
    with web.serving(folder) as server:
        assert fetched(f"{server.address}/", tmp_path) == (folder / LOOPS).read_bytes()
        assert server.requests == ["/manifest.json", f"/{LOOPS}"]
        assert "secret" not in str(server.headers)
        server.faults = [web.status(404)]
        with pytest.raises(InputError, match=r"manifest\.json: cannot be read \(HTTP Error 404"):
            opened(server.address)


@pytest.mark.parametrize(
    "name", ["../a/tables/b.parquet", "/a/tables/b.parquet", "a/b/c/tables/d.parquet", "..\\b"]
)
def test_a_name_that_leaves_the_release_is_no_table(release, name):
    folder = release()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"][LOOPS]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert list(opened(folder).tables) == [TRAINING, LOOPS]


@pytest.mark.parametrize(
    "change", [lambda content: content[:-1], lambda content: bytes([content[0] ^ 1]) + content[1:]]
)
def test_a_table_that_is_not_the_manifests_is_refused(release, tmp_path, change):
    folder = release()
    (folder / LOOPS).write_bytes(change((folder / LOOPS).read_bytes()))
    with pytest.raises(
        InputError, match=rf"{re.escape(LOOPS)}: found \d+ bytes with the SHA-256 .*, as manifest"
    ):
        fetched(folder, tmp_path)
    assert not (tmp_path / "here.parquet").exists()


@pytest.mark.parametrize(
    ("manifest", "match"),
    [
        (None, r"manifest\.json: cannot be read \(.*\), expected a file of released tables\.$"),
        ("{", r"manifest\.json: found no manifest of a release"),
        (
            '{"run": "a/../b", "config": {}, "files": {}}',
            r"manifest\.json: found no manifest of a release \(run",
        ),
        (
            '{"run": "a", "config": {}, "files": {"x": 3}}',
            r"manifest\.json: found no manifest of a release \(files",
        ),
        (
            '{"run": "a", "config": {"seed": "one"}, "files": {}}',
            r"manifest\.json: config key seed: found 'one'",
        ),
    ],
)
def test_a_folder_without_a_manifest_is_refused(tmp_path, manifest, match):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(InputError, match=match):
        opened(tmp_path).runs({})
    with pytest.raises(InputError, match="config key release: found 3, expected"):
        Release.open(3, ONCE)


# --- its runs -------------------------------------------------------------------------------------


def test_the_config_is_that_of_the_manifest_with_the_users_figures(release):
    mine = runs(release(), seed=3, figures={"fig1_tokens": 2}, run="other")
    assert (mine.selected, mine.config.seed, mine.config.figures.fig1_tokens) == ("tiny", 1337, 2)
    assert mine.config.train.iterations == preset("tiny")["train"]["iterations"]


def test_every_key_of_a_config_is_read_and_keys_that_are_gone_are_ignored(release):
    """Criteria and other mappings of a user's names keep all of them."""
    config = user_values(Config())
    config["exits"]["criteria"]["mine"] = {"thresholds": [0.1], "file": "gone.py", "class": "Mine"}
    old = config | {"gone": {"a": 1}, "train": config["train"] | {"gone": 3}}
    assert (
        opened(release(config=config)).runs({})["tiny"]
        == opened(release(config=old)).runs({})["tiny"]
    )
    assert (
        user_values(opened(release(config=old)).runs({})["tiny"])["exits"]["criteria"]["mine"][
            "class"
        ]
        == "Mine"
    )


def test_figures_read_released_tables_and_those_without_are_left_out(release):
    mine = runs(release())
    by_name = {figure.name: figure for figure in figures()}
    assert mine.figures.inputs(Figure("mine", inputs_from("training", "training_loops"))) == {
        "training": [f"results/released/{TRAINING}"],
        "training_loops": [f"results/released/{LOOPS}"],
    }
    assert (mine.figures.of_target("all"), mine.figures.claims, mine.figures.results({})) == (
        [],
        [],
        [],
    )
    with pytest.raises(InputError, match=r"has no tiny/tables/drift\.parquet"):
        mine.figures.inputs(by_name["fig2"])["drift"]({})


def test_planning_a_release_imports_no_torch_and_no_pandas(release):
    code = (
        "import sys; from twoscale.report.release import Release; from twoscale.config import"
        " DownloadConfig;"
        "Release.open(sys.argv[1], DownloadConfig()).runs({}); sys.exit({'torch', 'pandas'} &"
        " {*sys.modules} != set())"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(release())], check=True, timeout=120, env=os.environ
    )


def test_the_release_of_the_demo_is_intact_and_small():
    manifest = json.loads((DEMO / "manifest.json").read_text())
    names = {path.relative_to(DEMO).as_posix() for path in DEMO.rglob("*") if path.is_file()}
    assert names == {*manifest["files"], "manifest.json"}
    assert sum((DEMO / name).stat().st_size for name in names) <= 4 * 10**6
    for name, facts in manifest["files"].items():
        content = (DEMO / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}, name
    assert len(runs(DEMO).figures.results({})) == 6
