"""What leaves a run: a snapshot, which is drawn and compared elsewhere as a release, and the
exported model.
"""

import hashlib
import json
import shutil

import pytest

from tests import web
from twoscale.figures.catalogue import figures

PICTURES = [f"fig{number}.svg" for number in range(1, 6)]
DRAWN = {
    "fetch_release": 1,
    "judge_claims": 1,
    **{f"plot_fig{number}": 1 for number in range(1, 6)},
}


pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def snapshot(finished, tmp_path_factory):
    """The finished project with a snapshot of its run in the folder `release`; tests only look at
    it.
    """
    project = finished.copy(tmp_path_factory.mktemp("snapshot"))
    project.succeed("snapshot")
    shutil.copytree(project.root / "results/snapshot", project.root / "release")
    return project


@pytest.fixture
def released(snapshot, tmp_path):
    """A copy of that project which a test may change."""
    return snapshot.copy(tmp_path)


def test_a_snapshot_has_every_figure_its_tables_the_claims_and_digests_of_all(snapshot):
    folder = snapshot.root / "results/snapshot"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert {*PICTURES, "training.svg", "claims.md", "tiny/tables/exit_quality.parquet"} <= manifest[
        "files"
    ].keys()
    for name, facts in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert (manifest["run"], manifest["config"]["train"]["iterations"]) == ("tiny", 20)
    assert manifest["training"]["tokens"] == 20 * 4 * 32
    assert "train_segment" in {job["rule"] for job in manifest["jobs"]}
    assert snapshot.plan("snapshot") == snapshot.plan() == {}


def test_an_export_has_every_checkpoint_code_tokenizer_and_a_card_of_the_run(released):
    released.succeed("export")
    folder = released.root / "results/tiny/export"
    names = {path.name for path in folder.iterdir()}
    assert {
        "model.safetensors",
        "modeling_twoscale.py",
        "tokenizer.json",
        "README.md",
        "LICENSE",
    } <= names
    checkpoints = {f"iteration_0000{number}" for number in ("00", "10", "20")}
    assert {name for name in names if name.startswith("iteration")} == checkpoints
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["run"], config["iteration"], config["max_loops"], config["noise_seed"]) == (
        "tiny",
        20,
        6,
        1337,
    )
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "## The claims of the paper on this model" in card
    assert "| `iteration_000020` | 2,560 |" in card
    assert "## Depth and exits" in card
    assert "| useful loops |" not in card
    assert released.plan("export") == {}
    released.succeed("results/depth-card.md")
    assert released.plan("export") == {"export_model": 1}  # the card has its findings, too
    released.succeed("export")
    assert "| useful loops |" in (folder / "README.md").read_text(encoding="utf-8")
    # a module of the exported code: a comment does not change what is computed, but the file
    released.edit("src/twoscale/model/kernels.py", "# the norm reads x once", "# it reads x once")
    assert released.plan("export") == {"export_model": 1}
    done = released.run("-n", "export", "--config", "preset=ouro-1.4b", "run=ouro-1.4b")
    assert (
        "results/ouro-1.4b/export: found a published model, expected one that is trained here."
        in done.stdout
    )


def test_figures_and_verdicts_are_drawn_again_from_a_released_folder_without_training(released):
    project, option = released, ("--config", "release=release")
    project.configure(train={"iterations": 400})  # the config is that of the release
    mine = project.root / "results/tiny/tables/claims.parquet"
    shutil.rmtree(project.root / "results/tiny/checkpoints")
    before = mine.read_bytes()
    for name in [*PICTURES, "claims.md"]:
        (project.root / "results" / name).unlink()
    assert project.plan(*option) == DRAWN
    project.succeed(*option)
    for name in [*PICTURES, "claims.md"]:
        assert (project.root / "results" / name).read_bytes() == (
            project.root / "release" / name
        ).read_bytes(), name
    assert mine.read_bytes() == before
    assert project.plan(*option) == {}
    released_figures = {"training"} & {figure.name for figure in figures()}
    assert project.plan("supplementary", *option) == {
        f"plot_{name}": 1 for name in released_figures
    }
    # nothing that computes, or that mixes the tables with a run on this machine, can be asked for
    for target in ("text", "snapshot", "report_pages"):
        done = project.run("-n", target, *option)
        assert done.returncode != 0, target
    own = project.plan()  # without the option the figures are again those of the run here
    assert {f"plot_fig{number}" for number in range(1, 6)} <= {*own}
    assert "fetch_release" not in own


def test_a_figure_is_drawn_from_an_address_and_a_changed_table_there_is_one_sentence(released):
    fig2 = "results/fig2.pdf"
    with web.serving(released.root / "release") as server:
        option = ("--config", f"release={server.address}")
        released.succeed(fig2, *option, "--forcerun", "plot_fig2")
        picture = "fig2.svg"
        assert (released.root / "results" / picture).read_bytes() == (
            released.root / "release" / picture
        ).read_bytes()
        assert "/manifest.json" in server.requests
        assert not any(request.endswith((".svg", ".md")) for request in server.requests)
        table = released.root / "release/tiny/tables/drift.parquet"
        table.write_bytes(table.read_bytes()[:-1] + b"?")
        changed = f"error: {server.address}/tiny/tables/drift.parquet: found"
        released.refused(changed, fig2, *option, "--forcerun", "fetch_release")


def test_a_run_agrees_with_its_own_release_and_the_one_to_keep_is_that_of_a_checkout_without_changes(
    released,
):
    """Figures of the supplement stay behind; the demo's release is made in this way."""
    done = released.python("scripts/check_release.py", "release")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("arithmetic: as in the release")

    keep, kept = ("scripts/keep_release.py", "results/snapshot", "kept"), released.root / "kept"
    assert (
        "found modified: null, expected false" in released.python(*keep).stderr
    )  # the copy is no checkout
    manifest = released.root / "results/snapshot/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"modified": False}))
    assert released.python(*keep).returncode == 0
    names = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    assert names == {*json.loads((kept / "manifest.json").read_text())["files"], "manifest.json"}
    assert {*PICTURES, "tiny/tables/exit_costs.parquet"} <= names
    assert "claims.md" not in names
