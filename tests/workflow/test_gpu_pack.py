"""What the workflow does in a checkout that has the files of a pack, and nothing else."""

import lzma

import pytest

from twoscale.gpu import pack

DATA_RULES = {"fetch_gpt2", "prepare_text", "train_tokenizer", "tokenize_text", "join_tokens"}


@pytest.mark.parametrize(("preset", "tokenizer"), [("tiny", []), ("half-hour", ["gpt2.tiktoken"])])
def test_tokens_that_were_unpacked_are_not_made_again(fresh, monkeypatch, preset, tokenizer):
    """The text is not there, nor are Snakemake's records; the tokenizer, which is older, is unpacked last."""
    fresh.configure(preset=preset, run="a", compute={"device": "cpu"})
    folder = fresh.root / "gpu-pack"
    for name in ("a/data/train.bin", "a/data/val.bin", "a/data/tokens.json", *tokenizer):
        packed = folder / pack.FILES / "results" / f"{name}.xz"
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(b"content"))
    (folder / pack.MANIFEST).write_text("{}")
    monkeypatch.chdir(fresh.root)
    pack.unpack(folder)
    planned = fresh.plan("all", "results/training.pdf")
    assert not DATA_RULES & planned.keys()
    assert planned["init_model"] == planned["judge_claims"] == planned["plot_fig5"] == 1
