"""Tiny published models with random weights, as folders in the layout of the hub: config.json, safetensors, tokenizer.

Nothing about a trained model follows from them; that the weights mean what they should is tested on golden values.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from twoscale.data.tokenizer import END_OF_TEXT
from twoscale.model.published.folder import INDEX, WEIGHTS, PublishedFolder
from twoscale.model.published.ouro import OURO
from twoscale.model.published.raven import RAVEN

VOCAB_SIZE = 264  # 256 bytes, two special tokens, and rows that no token has
SIZE = 16

HUGINN = {
    "model_type": "huginn_raven",
    "n_embd": SIZE,
    "n_heads": 2,
    "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2,
    "n_layers_in_coda": 1,
    "mean_recurrence": 8,
    "intermediate_size": 24,
    "rope_base": 50000,
    "block_size": 64,
    "vocab_size": VOCAB_SIZE,
    "padded_vocab_size": VOCAB_SIZE,
    "qk_bias": True,
    "tie_embeddings": True,
}
OURO_1 = {
    "model_type": "ouro",
    "hidden_size": SIZE,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": VOCAB_SIZE,
    "total_ut_steps": 4,
    "early_exit_threshold": 1.0,
    "rope_theta": 1e6,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def write_huginn(folder: Path, seed: int = 0) -> Path:
    """Huginn in two files with an index."""
    return _write(folder, HUGINN, RAVEN, seed, files=2)


def write_ouro(folder: Path, seed: int = 0) -> Path:
    """Ouro in one file."""
    return _write(folder, OURO_1, OURO, seed, files=1)


def _write(folder, options, family, seed, files):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(options))
    names = ["transformer.core_block.0.norm_3.weight"]  # by which Huginn is told from a retrofitted model
    described = PublishedFolder(folder)
    described.__dict__["tensors"] = dict.fromkeys(names)  # before there are weights
    shapes = {part.name: part.shape for parts in family.tensors(described.model_config()).values() for part in parts}
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(shape, generator) for name, shape in shapes.items()}
    _save(folder, tensors, files)
    write_tokenizer(folder)
    return folder


def _random(shape, generator):
    """Matrices that keep the size of a state, vectors near one."""
    drawn = torch.randn(shape, generator=generator)
    return drawn / shape[-1] ** 0.5 if len(shape) == 2 else 1 + 0.1 * drawn if len(shape) == 1 else 0.1 * drawn


def _save(folder, tensors, files):
    if files == 1:
        save_file(tensors, folder / WEIGHTS)
        return
    index = {}
    for number in range(files):
        name = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        part = dict(list(tensors.items())[number::files])
        save_file(part, folder / name)
        index |= dict.fromkeys(part, name)
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))


def write_tokenizer(folder: Path) -> None:
    """One id per byte, then a begin of text that is put before a text, then the end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<|begin|>", END_OF_TEXT)])
    engine.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 256)])
    engine.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_OF_TEXT}))
