"""The folder of a release, in the layout of the Hugging Face hub.

    config.json, model.safetensors, generation_config.json   the model of the last checkpoint
    modeling_twoscale.py, model_transformer.py, …            its code: modules of this library
    tokenizer.json, tokenizer_config.json                    the run's tokenizer
    README.md, LICENSE                                       the model card, and the licence of the code
    iteration_000500/, …                                     every checkpoint, with code and tokenizer

`transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` loads it; a checkpoint is
`subfolder="iteration_000500"`. Equal files are hard links to one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from twoscale.base import link, replacing
from twoscale.config import ConfigSlice, complete, plain
from twoscale.data.tokenizer import Tokenizer
from twoscale.export.released import ORIGIN, check_released
from twoscale.export.sources import code_files
from twoscale.export.tokenizer_files import as_json, generation_config, tokenizer_config, tokenizer_json
from twoscale.model.checkpoints import Header, load_weights

WEIGHTS, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"
MODULE = "model"  # attribute of the class in transformers that is the library's model


def write_release(
    folder: Path,
    checkpoints: Sequence[Path],
    tokenizer: Tokenizer,
    tokenizer_file: Path | None,
    config: ConfigSlice,
    texts: dict[str, str],
) -> None:
    """Write the release of a run.

    Args:
        folder: Created if it is missing.
        checkpoints: All checkpoints of the run, the last one last.
        tokenizer: Its tokenizer.
        tokenizer_file: The file of the tokenizer, if it has one.
        config: The slice with `run`, `seed`, `model` and `max_loops`.
        texts: Further files, name -> content.

    Raises:
        InputError: for a model that cannot be released, and for checkpoints of another run or damaged ones.
    """
    check_released(config.run, config.model)
    common = code_files() | {
        "tokenizer.json": tokenizer_json(tokenizer, tokenizer_file),
        "tokenizer_config.json": as_json(tokenizer_config(config.model.context_length)),
    }
    for name, text in (common | texts).items():
        _write(folder / name, text)
    for checkpoint in checkpoints:
        _write_checkpoint(folder / checkpoint.stem, checkpoint, tokenizer, config)
        for name in common:
            link(folder / name, folder / checkpoint.stem / name)
    for name in (WEIGHTS, CONFIG, GENERATION):
        link(folder / checkpoints[-1].stem / name, folder / name)


def _write_checkpoint(folder: Path, checkpoint: Path, tokenizer: Tokenizer, config: ConfigSlice) -> None:
    identity = {"model": plain(config.model), "seed": config.seed}
    tensors, header = load_weights(checkpoint, identity, config.model, "cpu")
    with replacing(folder / WEIGHTS) as temporary:
        named = {f"{MODULE}.{name}": tensor for name, tensor in tensors.items()}
        save_file(named, temporary, metadata={"format": "pt"})
    _write(folder / CONFIG, as_json(model_config(config, header, tokenizer)))
    _write(folder / GENERATION, as_json(generation_config(tokenizer)))


def model_config(config: ConfigSlice, header: Header, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json of a checkpoint with this header."""
    section = {key: value for key, value in complete(config.model).items() if key not in ORIGIN}
    return {
        "model_type": "twoscale",
        "architectures": ["TwoscaleForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_twoscale.TwoscaleConfig",
            "AutoModelForCausalLM": "modeling_twoscale.TwoscaleForCausalLM",
        },
        "dtype": "float32",
        "max_loops": config.max_loops,
        "exit_criterion": None,
        "exit_threshold": None,
        "noise_seed": config.seed,
        "run": config.run,
        "iteration": header.iteration,
        "tokens_seen": header.tokens_seen,
        "eos_token_id": tokenizer.end_of_text,
        "padding_id": tokenizer.vocab_size,
        "model": section,
    }


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
