"""Ouro (Zhu et al., arXiv 2510.25741): all layers are looped; each loop ends with the final norm and an exit gate."""

from collections.abc import Collection, Mapping
from typing import Any

from twoscale.config import ModelConfig
from twoscale.model.published.family import (
    MOST_LOOPS,
    Defaults,
    Family,
    NameMap,
    Options,
    Part,
    Shape,
    check_head_size,
    layer_prefixes,
    rotation,
)

# our norm -> theirs
NORMS = {
    "norm1": "input_layernorm",
    "norm2": "input_layernorm_2",
    "norm3": "post_attention_layernorm",
    "norm4": "post_attention_layernorm_2",
}


def layer(options: Options, shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Keys of the section `model`, and "vocab_size"."""
    options.require(hidden_act="silu", use_sliding_window=False, attention_bias=False, mlp_bias=False)
    layers, size = options.count("num_hidden_layers", most=len(shapes)), options.count("hidden_size")
    options.require(layer_types=["full_attention"] * layers)
    heads = options.count("num_attention_heads")
    check_head_size(options, size, heads)
    return {
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": options.count("num_key_value_heads", default=heads),
        "hidden_size": size,
        "groups": [list(range(1, layers + 1))],
        "mean_loops": options.count("total_ut_steps", default=4, most=MOST_LOOPS),
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
        **rotation(options, 10_000.0),
        "mlp": "gated",
        "mlp_size": options.count("intermediate_size"),
        "embedding_scale": 1.0,
        "tied_head": bool(options.get("tie_word_embeddings", False)),
        "vocab_multiple": 1,
        "vocab_size": options.count("vocab_size"),
    }


def tensors(model: ModelConfig, names: Collection[str]) -> NameMap:
    """The published tensors of each parameter."""
    size, vocab = model.hidden_size, model.padded_vocab_size
    found: NameMap = {
        "token_embedding.weight": [Part("model.embed_tokens.weight", (vocab, size))],
        "final_norm.weight": [Part("model.norm.weight", (size,))],
        "gate.weight": [Part("model.early_exit_gate.weight", (1, size))],
        "gate.bias": [Part("model.early_exit_gate.bias", (1,))],
    }
    if not model.tied_head:
        found["head.weight"] = [Part("lm_head.weight", (vocab, size))]
    for number, ours in layer_prefixes(model).items():
        theirs = f"model.layers.{number - 1}"
        found |= {f"{ours}.{name}": parts for name, parts in _layer_tensors(model, theirs).items()}
    return found


def _layer_tensors(model: ModelConfig, theirs: str) -> NameMap:
    size, keys = model.hidden_size, model.kv_heads * model.head_dim
    rows = {"q": size, "k": keys, "v": keys}
    norms = {f"{name}.weight": [Part(f"{theirs}.{norm}.weight", (size,))] for name, norm in NORMS.items()}
    return norms | {
        "qkv.weight": [Part(f"{theirs}.self_attn.{name}_proj.weight", (count, size)) for name, count in rows.items()],
        "attention_out.weight": [Part(f"{theirs}.self_attn.o_proj.weight", (size, size))],
        "mlp_in.weight": [Part(f"{theirs}.mlp.{name}_proj.weight", (model.mlp_width, size)) for name in ("gate", "up")],
        "mlp_out.weight": [Part(f"{theirs}.mlp.down_proj.weight", (size, model.mlp_width))],
    }


def droppable(model: ModelConfig, names: Collection[str]) -> Collection[str]:
    """The table of rotary frequencies, and a head that is tied."""
    return {"model.rotary_emb.inv_freq", *(["lm_head.weight"] if model.tied_head else [])}


def defaults(options: Options, names: Collection[str]) -> Defaults:
    """All of `total_ut_steps` loops or those up to `early_exit_step`; an exit by the gate at `early_exit_threshold`."""
    criteria = {"exit_gate": [options.positive("early_exit_threshold", 1.0)]}
    loops = options.count("total_ut_steps", default=4, most=MOST_LOOPS)
    last = options.get("early_exit_step", loops - 1)  # from 0; their code ignores a number out of range
    if isinstance(last, bool) or not isinstance(last, int):
        raise options.error("early_exit_step", "a whole number")
    return Defaults(
        last + 1 if 0 <= last < loops else loops,
        criteria,
        options.count("max_position_embeddings", default=32768),
    )


# Windows and dropout that `use_sliding_window` and evaluation leave out.
IRRELEVANT = {"max_window_layers", "sliding_window", "use_weighted_exit", "use_early_exit_gate"}

OURO = Family("Ouro", layer, tensors, droppable, defaults, IRRELEVANT)
