"""Huginn (Geiping et al., arXiv 2502.05171), and models retrofitted with its loop (McLeish et al., arXiv 2511.07384).

All have the model type `huginn_raven`. Their layers differ and are told apart by the tensors of a layer: Huginn's has
four norms, that of a retrofitted Llama two before the branches, that of a retrofitted OLMo two after them and norms of
queries and keys. The retrofitted models keep rotary embeddings, embedding scale and head of the model they come from,
and have no norm where the loop ends.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from twoscale.config import ModelConfig
from twoscale.model.published import family
from twoscale.model.published.family import Defaults, Family, NameMap, Options, Shape

FIRST_LAYER = "transformer.core_block.0."
# our norm -> theirs
NORMS = {
    "sandwich": {f"norm{number}.weight": [f"norm_{number}.weight"] for number in (1, 2, 3, 4)},
    "pre": {"norm1.weight": ["norm_1.weight"], "norm3.weight": ["norm_2.weight"]},
    "post": {"norm2.weight": ["norm_1.weight"], "norm4.weight": ["norm_2.weight"]},
}
LAYER = {
    "qkv.weight": ["attn.Wqkv.weight"],
    "attention_out.weight": ["attn.proj.weight"],
    "mlp_in.weight": ["mlp.fc.weight"],
    "mlp_out.weight": ["mlp.proj.weight"],
}
QK_BIAS = {"heads.bias": ["attn.qk_bias"]}
QK_NORM = {"heads.q_norm.weight": ["attn.q_norm.weight"], "heads.k_norm.weight": ["attn.k_norm.weight"]}
# Thresholds "auto" of the exit evaluators in Huginn's code.
AUTO_THRESHOLDS: dict[str, list[float]] = {
    "entropy_diff": [1e-3],
    "argmax_stability": [5],
    "cosine": [1e-3],
    "minp_kl": [1e-5],
}


def layer(options: Options, names: Mapping[str, Shape]) -> dict[str, Any]:
    """Keys of the section `model`, and "vocab_size"."""
    options.require(block_class_name="SandwichBlock", norm_class_name="RMSNorm_llama", mlp_class_name="GatedMLP")
    options.require(nonlin_name="SiLU", injection_type="linear", bias=False, test_time_noise=0)
    options.choice("initial_state_mode", "random", ("random", "embed-init"))
    prelude, core, coda = (options.count(f"n_layers_in_{part}") for part in ("prelude", "recurrent_block", "coda"))
    size, heads = options.count("n_embd", "hidden_size"), options.count("n_heads", "num_attention_heads")
    family.check_head_size(options, size, heads)
    kv_heads = options.count("num_key_value_heads", default=heads)
    if kv_heads != heads and options.get("qk_bias", True):
        raise options.error("num_key_value_heads", f"{heads}, n_heads, for a model with qk_bias")
    variant = huginn if f"{FIRST_LAYER}norm_3.weight" in names else retrofitted
    return {
        "num_layers": prelude + core + coda,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "hidden_size": size,
        "groups": [list(range(prelude + 1, prelude + core + 1))],
        "mean_loops": options.count("mean_recurrence", default=32),
        "injection": "projection",
        "loop_norm": False,
        "exit_gate": False,
        "mlp": "gated",
        "mlp_size": options.count("intermediate_size"),
        "positions": "rotary",
        "qk_bias": bool(options.get("qk_bias", True)),
        "norm_epsilon": options.positive("norm_eps", 1e-6),
        "tied_head": bool(options.get("tie_embeddings", True)),
        "vocab_multiple": 1,
        "vocab_size": options.count("padded_vocab_size", "vocab_size"),
        **variant(options, names, size),
    }


def _state(options: Options, size: int, scale: float, from_input: bool) -> dict[str, Any]:
    """The first state, and the scale of the embedding, which is also the scale of the noise."""
    std = options.within("init_values").positive("std", math.sqrt(2 / (5 * size)))
    return {"state_init": "input" if from_input else "noise", "embedding_scale": scale, "state_std": std * scale}


def huginn(options: Options, names: Collection[str], size: int) -> dict[str, Any]:
    """Keys of Huginn only. Its code takes the scale from the size and draws the first state, whatever the config."""
    return {
        **_state(options, size, math.sqrt(size), from_input=False),
        "norms": "sandwich",
        "sandwich": "post_residual",
        "exit_norm": "final_norm",
        "rotary_pairs": "interleaved",
        "rotary_base": options.positive("rope_base", 50_000.0),
        "rotary_scaling": None,
        "qk_norm": False,
    }


def retrofitted(options: Options, names: Collection[str], size: int) -> dict[str, Any]:
    """Keys of retrofitted Llama, TinyLlama and OLMo models."""
    has_qk_norm = f"{FIRST_LAYER}attn.q_norm.weight" in names
    scale = options.within("init_values").positive("embed_scale", math.sqrt(size))
    return {
        # only the code of OLMo reads the mode, Llama's draws the first state
        **_state(options, size, scale, from_input=has_qk_norm and options.get("initial_state_mode") == "embed-init"),
        "norms": "post" if has_qk_norm else "pre",
        "exit_norm": "none",
        "rotary_pairs": "halves",
        **family.rotation(options, None),
        "qk_norm": has_qk_norm,
    }


def tensors(model: ModelConfig, names: Collection[str]) -> NameMap:
    """The published tensors of each parameter."""
    outside = {
        "token_embedding.weight": "transformer.wte.weight",
        "final_norm.weight": "transformer.ln_f.weight",
        "groups.0.adapter.weight": "transformer.adapter.weight",
    }
    inside = NORMS[model.norms] | LAYER | (QK_BIAS if model.qk_bias else {}) | (QK_NORM if model.qk_norm else {})
    return family.name_map(model, outside, lambda number: f"transformer.{family.core_layer(model, number)}", inside)


def defaults(options: Options, names: Collection[str]) -> Defaults:
    """The mean number of loops, and the exit criteria at the thresholds of Huginn's code."""
    positions = options.count("max_position_embeddings", "block_size", default=4096)
    return Defaults(options.count("mean_recurrence", default=32), AUTO_THRESHOLDS, positions)


TABLES = r"freqs_cis|rotary_emb\.inv_freq"  # of rotary embeddings
RAVEN = Family("Huginn and retrofitted models", layer, tensors, TABLES, defaults, "freqs_cis")
