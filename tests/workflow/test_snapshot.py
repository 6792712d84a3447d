"""A snapshot of a finished run: what is in it, and that it follows the run."""

import hashlib
import json

import pytest


@pytest.mark.runs
def test_a_snapshot_has_every_figure_its_tables_the_claims_and_digests_of_all(editable):
    assert editable.plan("snapshot") == {"aggregate_training": 1, "plot_training": 1, "take_snapshot": 1}
    editable.succeed("snapshot")
    folder = editable.root / "results/snapshot"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    pictures = {f"fig{number}.svg" for number in range(1, 6)} | {"training.svg"}
    assert pictures | {"claims.md"} <= manifest["files"].keys()
    assert "tiny/tables/exit_quality.parquet" in manifest["files"]
    for name, facts in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert facts == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert (manifest["run"], manifest["config"]["train"]["iterations"]) == ("tiny", 20)
    assert manifest["training"]["tokens"] == 20 * 4 * 32
    assert "train_segment" in {job["rule"] for job in manifest["jobs"]}
    assert editable.plan("snapshot") == editable.plan() == {}


def test_a_snapshot_of_a_published_model_is_refused_in_one_sentence(fresh):
    done = fresh.run("-n", "snapshot", "--config", "preset=ouro-1.4b")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "results/snapshot: run ouro-1.4b has a published model, expected one trained here." in said
