"""Published models through the whole workflow: tiny Huginn from a hub that fails, tiny Ouro from a
local folder.
"""

import json

import pandas as pd
import pytest
import yaml

from tests import hub as loopback
from tests.published import write_folder
from tests.workflow.conftest import Project, checkout
from twoscale.model.published.folder import PublishedFolder

pytestmark = pytest.mark.runs

FIGURES = [f"fig{number}" for number in range(1, 6)]
# as few jobs as have one of each kind
UNUSED = dict.fromkeys(("step_norm", "kl", "acceleration", "entropy_diff", "cosine", "minp_kl"))
SMALL = {"data": {"text_shards": 1, "held_out_tokens": 2048}}


@pytest.fixture(scope="session")
def huginn(tmp_path_factory) -> Project:
    """Tiny Huginn after a full run: downloaded, with the keys of the model in the config as in a
    preset.
    """
    folder = write_folder("huginn", tmp_path_factory.mktemp("hub") / "repository")
    (folder / "modeling.py").write_text("raise SystemExit('remote code ran')")
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    project = checkout(tmp_path_factory.mktemp("huginn"))
    published = PublishedFolder(folder)
    origin = {"source": "published", "repository": loopback.REPOSITORY, "revision": loopback.COMMIT}
    loops = published.description.loops
    project.configure(
        run="huginn",
        model=published.layer["model"] | origin,
        tokenizer=published.layer["tokenizer"],
        trajectories={"loops": loops},
        path_types={"window": loops},
        exits={
            "max_loops": loops,
            "readout": "remaining_layers",
            "criteria": UNUSED
            | {"fixed": {"thresholds": [loops]}, "argmax_stability": {"thresholds": [2]}},
        },
        scaling={"loops": [1, 2, 4]},
        download={"delay": 0.0},
        **SMALL,
    )
    with loopback.serving(folder) as hub:
        hub.faults += [loopback.truncate, loopback.status(503)]
        environment = hub.environment(tmp_path_factory.mktemp("home"))
        project.succeed(**environment)
        asked = hub.content_requests()
        project.succeed("--forcerun", "fetch_model", "--until", "fetch_model", **environment)
        assert hub.content_requests() == asked  # weights that are there are not fetched again
    return project


@pytest.fixture(scope="session")
def ouro(tmp_path_factory) -> Project:
    """Tiny Ouro, some of whose tables are made from a folder in the project, selected by a file of
    the user.
    """
    project = checkout(tmp_path_factory.mktemp("ouro"))
    write_folder("ouro", project.root / "models" / "ouro")
    model = {"source": "published", "folder": "models/ouro"}
    config = {"run": "ouro", "model": model, "exits": {"criteria": UNUSED}} | SMALL
    (project.root / "my.yaml").write_text(yaml.safe_dump(config))
    made = (f"results/ouro/tables/{name}.parquet" for name in ("drift", "exit_quality"))
    project.succeed("--configfile", "my.yaml", "--", *made)
    return project


def tables(project: Project, run: str, name: str) -> pd.DataFrame:
    return pd.read_parquet(project.root / f"results/{run}/tables/{name}.parquet")


def test_a_repository_gives_all_figures_and_claims_without_training(huginn):
    for name in FIGURES:
        assert (huginn.root / f"results/{name}.pdf").read_bytes().startswith(b"%PDF")
    assert not (huginn.root / "results/huginn/checkpoints").exists()
    assert set(tables(huginn, "huginn", "loop_metrics")["iteration"]) == {0}
    verdicts = tables(huginn, "huginn", "claims").query("scope == 'all'").set_index("claim")
    assert (verdicts.loc[[2, 3, 5, 6, 12], "verdict"] == "not asked").all()
    reason = "the claim is about the course of training, and a published model has one checkpoint"
    assert verdicts.loc[2, "reason"] == reason
    assert "(untrained)" not in (huginn.root / "results/claims.md").read_text()
    (manifest,) = (huginn.root / "resources/models").glob("*/published.json")
    fetched = json.loads(manifest.read_text())
    assert (fetched["repository"], fetched["revision"]) == (loopback.REPOSITORY, loopback.COMMIT)
    files = {path.name: path.stat().st_size for path in manifest.parent.iterdir() if path.is_file()}
    assert fetched["files"] == {name: size for name, size in files.items() if name != manifest.name}
    assert not files.keys() & {"modeling.py", "pytorch_model.bin"}
    assert list(tables(huginn, "huginn", "drift")["boundary"].unique()) == [
        "prelude->2-3",
        "2-3->coda",
    ]
    assert huginn.plan() == {}


def test_a_folder_is_measured_with_its_gate_and_changed_weights_repeat_that_and_not_the_text(
    ouro, tmp_path
):
    quality = tables(ouro, "ouro", "exit_quality")
    assert set(quality["criterion"]) == {"fixed", "exit_gate"}
    assert quality.query("criterion == 'exit_gate'")["threshold"].nunique() == 10
    assert list(tables(ouro, "ouro", "drift")["boundary"].unique()) == ["embedding->1-2"]
    copy = ouro.copy(tmp_path)
    weights = copy.root / "models/ouro/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    planned = copy.plan("--configfile", "my.yaml")
    assert planned["measure_exit_quality"] == 2
    assert {"extract_trajectories", "extract_states", "benchmark_exits"} <= set(planned)
    assert not {
        "prepare_text",
        "tokenize_text",
        "join_tokens",
        "init_model",
        "train_segment",
    } & set(planned)
