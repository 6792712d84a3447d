"""The release of a finished run: what is in it, and that it follows the run and the code."""

import json

import pytest


@pytest.mark.runs
def test_a_release_has_every_checkpoint_code_tokenizer_and_a_card_of_the_run(editable):
    assert editable.plan("release") == {"aggregate_training": 1, "export_model": 1}
    editable.succeed("release")
    folder = editable.root / "results/tiny/release"
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "modeling_twoscale.py", "tokenizer.json", "README.md", "LICENSE"} <= names
    assert {name for name in names if name.startswith("iteration")} == {
        f"iteration_0000{n}" for n in ("00", "10", "20")
    }
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["run"], config["iteration"], config["max_loops"], config["noise_seed"]) == ("tiny", 20, 6, 1337)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "## The claims of the paper on this model" in card
    assert "| `iteration_000020` | 2,560 |" in card
    assert editable.plan("release") == editable.plan() == {}
    # a module of the released code: a comment does not change what is computed, but the file
    editable.edit("src/twoscale/model/rms_norm.py", "# the norm reads x once", "# it reads x once")
    assert editable.plan("release") == {"export_model": 1}


def test_a_release_of_a_published_model_is_refused_in_one_sentence(fresh):
    done = fresh.run("-n", "release", "--config", "preset=ouro-1.4b")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "results/ouro-1.4b/release: found a published model, expected one that is trained here." in said
