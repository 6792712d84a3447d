"""Huginn's architecture against the code that was published with it

    python tests/benchmarks/bench_published.py [--huginn raven_modeling_minimal.py] [--repeats 15]

One token is decoded after a prompt of 128 tokens. The model has width 768, 2 + 4 + 2 layers, 32 loops, a vocabulary of
8192 and random weights in float32; the CPU time of one thread is measured. The published code has two caches: a dynamic
cache, the default of its `generate`, and a static cache. Before anything is timed, the benchmark checks that both
programs compute the same logits for a text.

The published file is specified by its path, with `raven_config_minimal.py` in the same folder. The published code needs
`transformers` 4.
"""

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
from common import compare, not_measured, options
from safetensors.torch import save_file
from torch import Tensor

from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.model.interface import LoopedModel
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.published.weights import open_published

SEED = 0
LOOPS = 32
PROMPT = 128
SIZES = {
    "n_embd": 768,
    "n_heads": 8,
    "intermediate_size": 2608,
    "n_layers": 8,
    "n_layers_in_prelude": 2,
    "n_layers_in_recurrent_block": 4,
    "n_layers_in_coda": 2,
    "mean_recurrence": LOOPS,
    "vocab_size": 8192,
    "block_size": 512,
}
TOLERANCE = 1e-4  # of the largest logit


def load(path: Path) -> ModuleType:
    """The published file as a module of a package that is its folder."""
    package = ModuleType("huginn")
    package.__path__ = [str(path.parent)]
    sys.modules["huginn"] = package
    return importlib.import_module(f"huginn.{path.stem}")


def published_model(code: ModuleType) -> torch.nn.Module:
    torch.manual_seed(SEED)
    model = code.RavenForCausalLM(code.RavenConfig(**SIZES, torch_dtype="float32")).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name or "ln_f" in name:  # ones and zeros, which would hide a swap
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def imported(model: torch.nn.Module) -> LoopedModel:
    """The same weights through the importer of this project."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.config.save_pretrained(folder)
        weights = {
            key: tensor for key, tensor in model.state_dict().items() if key not in ("lm_head.weight", "freqs_cis")
        }
        save_file(weights, folder / "model.safetensors")
        return open_published(folder, PublishedFolder(folder).model_config(), torch.float32, "cpu")


class PublishedDecoder:
    """Tokens through the published forward pass and one of its caches.

    states: initial states (1, context, C), read by position.
    """

    def __init__(self, model: torch.nn.Module, cache: object, states: Tensor) -> None:
        self.model, self.cache, self.states = model, cache, states
        self.position = 0

    @torch.inference_mode()
    def feed(self, *tokens: int) -> Tensor:
        """Logits (N, V) after each of N more tokens."""
        positions = torch.arange(self.position, self.position + len(tokens))
        self.position += len(tokens)
        return self.model(
            torch.tensor([tokens]),
            input_states=self.states[:, positions],
            num_steps=LOOPS,
            past_key_values=self.cache,
            use_cache=True,
            cache_position=positions,
        ).logits[0]


def static_cache(code: ModuleType) -> object:
    # recent versions of transformers refuse the call of the base class in it, which sets nothing that is used
    with mock.patch.object(code.Cache, "__init__", return_value=None):
        heads = SIZES["n_heads"]
        return code.HuginnStaticCache(SIZES["block_size"], 4 + 4 * LOOPS, heads, SIZES["n_embd"] // heads)


def check(label: str, ours: Tensor, theirs: Tensor) -> None:
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{label}: largest difference of a logit {error:.1e} of the largest logit", flush=True)
    if not error <= TOLERANCE:
        raise SystemExit(f"{label}: the logits differ by {error:.1e}, expected at most {TOLERANCE:.0e}")


def compare_cache(model: torch.nn.Module, ours: LoopedModel, label: str, cache: object, repeats: int) -> None:
    decoder = Decoder(ours, make_criterion("fixed", LOOPS), LOOPS, SEED)
    like = torch.empty(1, SIZES["block_size"], SIZES["n_embd"])
    peer = PublishedDecoder(model, cache, decoder.noise(0, 0, like))
    text = torch.randint(SIZES["vocab_size"], (PROMPT + 1,)).tolist()
    check(f"prompt, {label}", decoder.prefill(text[:-1])[0], peer.feed(*text[:-1]))
    check(f"next token, {label}", decoder.feed(text[-1])[0], peer.feed(text[-1])[0])
    calls = lambda: decoder.feed(0, [LOOPS]), lambda: peer.feed(0)
    compare(f"a token against {label}", *calls, repeats, clock=time.thread_time)


def main() -> None:
    arguments = options(__doc__, {}, huginn=os.environ.get("HUGINN"), repeats=15)
    if not arguments.huginn:
        return not_measured("its", "give Huginn's raven_modeling_minimal.py by --huginn or HUGINN")
    torch.set_num_threads(1)
    code = load(Path(arguments.huginn).resolve())
    model = published_model(code)
    ours = imported(model)
    compare_cache(model, ours, "its dynamic cache", code.HuginnDynamicCache(), arguments.repeats)
    compare_cache(model, ours, "its static cache", static_cache(code), arguments.repeats)
    return None


if __name__ == "__main__":
    main()
