"""Tiny published models as folders in the layout of the hub: the golden ones with a tokenizer."""

import json
import shutil
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from tests.small import ROOT

GOLDEN = ROOT / "tests" / "golden" / "published"
CHARACTERS = "abcdefghijklmnopqrstuvwxyz .,()_\n"
BEGIN, END = "<|begin|>", "<|end|>"


def write_folder(name: str, folder: Path) -> Path:
    """The golden model `name` with a tokenizer."""
    shutil.copytree(GOLDEN / name, folder, ignore=shutil.ignore_patterns("expected.safetensors"))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """One id per character, one for all others, a begin of text that is put before a text, and the
    end of text.
    """
    vocabulary = {sign: number for number, sign in enumerate(["?", *CHARACTERS])}
    engine = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="?"))
    engine.normalizer = normalizers.Lowercase()
    engine.decoder = decoders.Fuse()
    engine.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in (BEGIN, END)]
    )
    begin = (BEGIN, len(vocabulary))
    engine.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[begin]
    )
    engine.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
