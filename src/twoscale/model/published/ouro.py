"""Ouro (Zhu et al., arXiv 2510.25741): all layers are looped; each loop ends with the final norm and an exit gate."""

from collections.abc import Collection, Mapping
from typing import Any

from twoscale.config import ModelConfig
from twoscale.model.published import family
from twoscale.model.published.family import Defaults, Family, NameMap, Options, Shape

LAYER = {
    "norm1.weight": ["input_layernorm.weight"],
    "norm2.weight": ["input_layernorm_2.weight"],
    "norm3.weight": ["post_attention_layernorm.weight"],
    "norm4.weight": ["post_attention_layernorm_2.weight"],
    "qkv.weight": ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
    "attention_out.weight": ["self_attn.o_proj.weight"],
    "mlp_in.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "mlp_out.weight": ["mlp.down_proj.weight"],
}


def layer(options: Options, shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Keys of the section `model`, and "vocab_size"."""
    options.require(hidden_act="silu", use_sliding_window=False, attention_bias=False, mlp_bias=False)
    layers, size = options.count("num_hidden_layers"), options.count("hidden_size")
    options.require(layer_types=["full_attention"] * layers)
    heads = options.count("num_attention_heads")
    family.check_head_size(options, size, heads)
    return {
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": options.count("num_key_value_heads", default=heads),
        "hidden_size": size,
        "groups": [list(range(1, layers + 1))],
        "mean_loops": options.count("total_ut_steps", default=4),
        "norms": "sandwich",
        "sandwich": "branch",
        "norm_epsilon": options.positive("rms_norm_eps", 1e-6),
        "state_init": "input",
        "injection": "none",
        "exit_norm": "none",
        "loop_norm": True,
        "exit_gate": True,
        "positions": "rotary",
        "rotary_pairs": "halves",
        **family.rotation(options, 10_000.0),
        "mlp": "gated",
        "mlp_size": options.count("intermediate_size"),
        "embedding_scale": 1.0,
        "tied_head": bool(options.get("tie_word_embeddings", False)),
        "vocab_multiple": 1,
        "vocab_size": options.count("vocab_size"),
    }


def tensors(model: ModelConfig, names: Collection[str]) -> NameMap:
    """The published tensors of each parameter."""
    outside = {
        "token_embedding.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "gate.weight": "model.early_exit_gate.weight",
        "gate.bias": "model.early_exit_gate.bias",
    }
    return family.name_map(model, outside, lambda number: f"model.layers.{number - 1}", LAYER)


def defaults(options: Options, names: Collection[str]) -> Defaults:
    """All of `total_ut_steps` loops or those up to `early_exit_step`; an exit by the gate at `early_exit_threshold`."""
    criteria = {"exit_gate": [options.positive("early_exit_threshold", 1.0)]}
    loops = options.count("total_ut_steps", default=4)
    last = options.get("early_exit_step", loops - 1)  # from 0; their code ignores a number out of range
    if type(last) is not int:
        raise options.error("early_exit_step", "a whole number")
    loops = last + 1 if 0 <= last < loops else loops
    return Defaults(loops, criteria, options.count("max_position_embeddings", default=32768))


OURO = Family("Ouro", layer, tensors, r"model\.rotary_emb\.inv_freq", defaults)
