"""Parcae (Prairie et al., arXiv 2604.12946): a prelude, a core that is looped with an injection of its input, a coda.

Two namings of tensors are read: Parcae's, and the one of the training script derived from it that names
the embedding `tok_emb` and the projection after the core `project_out`. Sizes are read from the tensors; where
config.json has them too, they must agree.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from twoscale.base import InputError
from twoscale.config import ModelConfig
from twoscale.model.published import family
from twoscale.model.published.family import Defaults, Family, NameMap, Options, Shape

Shapes = Mapping[str, Shape]
LAYER = {
    "norm1.weight": ["norm_1.weight"],
    "norm3.weight": ["norm_2.weight"],
    "qkv.weight": ["attn.c_q.weight", "attn.c_k.weight", "attn.c_v.weight"],
    "attention_out.weight": ["attn.c_proj.weight"],
    "mlp_in.weight": ["mlp.fc.weight"],
    "mlp_out.weight": ["mlp.proj.weight"],
}
ACTIVATIONS = {"GELU": "gelu", "SiLU": "silu", "ReLU2": "relu2"}
STATES = {"like-init": "noise", "zero": "zero"}
# Initialisations whose embedding has the deviation sqrt(2 / 5C) -> whether the embedding is multiplied by sqrt(C).
STRATEGIES = {"scaled": False, "scaled-zero": False, "scaled-geiping": False, "small": False, "takase": True}


@dataclass(frozen=True)
class Layout:
    """Names of tensors, and the defaults of their code for absent keys."""

    prefix: str
    embedding: str
    input_norm: str
    exit_projection: str
    final_norm: str
    rope_base: float
    norm_epsilon: float
    softcap: float | None
    context: int
    state_std: float | None  # None: from init_strategy


REPOSITORY = Layout(
    *("transformer.", "transformer.wte", "transformer.ln_prelude", "transformer.C", "transformer.ln_f"),
    *(50_000.0, 1e-5, None, 4096, None),
)
SCRIPT = Layout(
    *("", "tok_emb", "prelude_norm_layer", "project_out", "final_norm"), *(10_000.0, 1e-6, 30.0, 1024, 0.005)
)


def layout(names: Collection[str]) -> Layout:
    """The naming that a folder has."""
    return REPOSITORY if any(name.startswith(REPOSITORY.prefix) for name in names) else SCRIPT


def layer(options: Options, shapes: Shapes) -> dict[str, Any]:
    """Keys of the section `model`, and "vocab_size"."""
    of = layout(shapes)
    _refuse(options, shapes, of)
    cap = options.get("logit_softcap", of.softcap)
    adapters = {f"{of.prefix}adapter.A_log": "diagonal", f"{of.prefix}adapter.adapter.weight": "linear"}
    kind = options.agree(next((adapters[name] for name in adapters if name in shapes), "add"), "injection_type")
    return {
        **_sizes(options, shapes, of),
        **_rotation(options, of),
        **_state(options, shapes, of),
        "mean_loops": options.count("mean_recurrence"),
        "norms": "pre",
        "norm_epsilon": options.positive("norm_eps", of.norm_epsilon),
        "loop_norm": False,
        "exit_norm": "none",
        "exit_gate": False,
        "injection": "projection" if kind == "linear" else kind,
        "input_norm": options.agree(f"{of.input_norm}.weight" in shapes, "prelude_norm"),
        "exit_projection": True,
        "positions": "rotary",
        "qk_norm": "head" if options.get("qk_norm", False) else False,
        "activation": ACTIVATIONS[options.choice("nonlin_name", "GELU", ACTIVATIONS)],
        "tied_head": bool(options.get("tie_embeddings", "lm_head.weight" not in shapes)),
        "logit_softcap": cap and options.positive("logit_softcap", cap),
        "vocab_multiple": 1,
    }


def _refuse(options: Options, shapes: Shapes, of: Layout) -> None:
    """Refuse options and tensors that are not supported."""
    options.require(block_class_name="TransformerPreNormBlock", norm_class_name="RMSNorm", bias=False)
    options.require(use_abacus=False, debias_attention=False, center_attention=False, mup_model_scaling_factor=1)
    options.require(clip_qkv=None, randomize_positions_from=None, logit_scale=1, recurrent_layer_rope_dims="")
    options.require(bigram_hash_buckets=0)
    if tables := sorted(name for name in shapes if "value_embeds." in name):
        raise InputError(f"{options.path.parent}: found value embeddings ({tables[0]}), which are not supported.")
    core = f"{of.prefix}core_block.0"
    for name in (f"{of.embedding}.weight", f"{core}.attn.c_q.weight", f"{core}.mlp.fc.weight"):
        if name not in shapes:
            raise InputError(f"{options.path.parent}: found no tensor {name}, expected the tensors of Parcae.")


def _sizes(options: Options, shapes: Shapes, of: Layout) -> dict[str, Any]:
    rows, size = shapes[f"{of.embedding}.weight"]
    prelude, core, coda = (
        options.agree(_layers(shapes, f"{of.prefix}{part}."), f"n_layers_in_{name}")
        for part, name in {"prelude": "prelude", "core_block": "recurrent_block", "coda": "coda"}.items()
    )
    heads = options.count("num_attention_heads", "num_heads")
    family.check_head_size(options, size, heads)
    inside = f"{of.prefix}core_block.0"
    outside = f"{of.prefix}{'prelude' if prelude else 'coda'}.0" if prelude + coda else inside
    (kv_heads, width), looped = (_layer_sizes(shapes, part, size // heads) for part in (outside, inside))
    gated = shapes[f"{inside}.mlp.fc.weight"][0] == 2 * looped[1]
    options.agree(size, "n_embd", "model_dim", "recurrent_embedding_dimension", "recurrent_dim")
    options.agree(heads, "recurrent_num_attention_heads", "recurrent_num_heads")
    options.agree(kv_heads, "num_key_value_heads", "num_kv_heads")
    options.agree(width, "intermediate_size")
    options.agree(width / size, "mlp_mult")
    options.agree(looped[1], "recurrent_intermediation_embedding_dimension")
    if options.get("recurrent_intermediate_dim", 0):
        options.agree(looped[1], "recurrent_intermediate_dim")
    options.agree("GatedMLP" if gated else "BaseMLP", "mlp_class_name", "recurrent_mlp_class_name")
    options.agree(rows, "padded_vocab_size")
    return {
        "num_layers": prelude + core + coda,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "looped_kv_heads": looped[0],
        "qk_bias": options.agree(f"{inside}.attn.qk_bias" in shapes, "qk_bias"),
        "hidden_size": size,
        "groups": [list(range(prelude + 1, prelude + core + 1))],
        "mlp": "gated" if gated else "plain",
        "mlp_size": width,
        "looped_mlp_size": looped[1],
        "vocab_size": rows,
    }


def _layers(shapes: Shapes, prefix: str) -> int:
    """Number of layers under a prefix."""
    return len({name.removeprefix(prefix).split(".")[0] for name in shapes if name.startswith(prefix)})


def _layer_sizes(shapes: Shapes, name: str, head_dim: int) -> tuple[int, int]:
    """Heads of keys and values of a layer, and the hidden size of its MLP."""
    parts = (f"{name}.attn.c_k.weight", f"{name}.mlp.proj.weight")
    keys, width = (shapes.get(part, (head_dim, 1)) for part in parts)
    return max(1, keys[0] // head_dim), width[-1]


def _rotation(options: Options, of: Layout) -> dict[str, Any]:
    settings = options.within("rope_settings")
    settings.require(use_rope=True, rope_condense_ratio=1)
    base = settings if settings.get("rope_base") is not None else options
    channels = options.get("rope_dims", 0) or None
    options.require(outer_rope_dims=channels, recurrent_rope_dims=channels)
    return {
        "rotary_pairs": "interleaved",
        "rotary_base": base.positive("rope_base", of.rope_base),
        "rotary_scaling": None,
        "rotary_channels": channels and options.count("rope_dims"),
    }


def _state(options: Options, shapes: Shapes, of: Layout) -> dict[str, Any]:
    """The first state, and the scale of the embedding, which is also the scale of the noise."""
    init, size = options.choice("state_init", "like-init", STATES), shapes[f"{of.embedding}.weight"][1]
    is_scaled = STRATEGIES[options.choice("init_strategy", "scaled", STRATEGIES)]
    scale = options.positive("emb_scale", math.sqrt(size) if is_scaled else 1.0)
    std = options.positive("tied_embed_init_std", of.state_std or math.sqrt(2 / (5 * size)))
    return {"state_init": STATES[init], "embedding_scale": scale, "state_std": std * scale}


def tensors(model: ModelConfig, names: Collection[str]) -> NameMap:
    """The published tensors of each parameter."""
    of = layout(names)
    adapter = {
        "diagonal": {"decay_bias": "A_log", "step_bias": "dt_bias", "of_input.weight": "B"},
        "projection": {"adapter.weight": "adapter.weight"},
    }.get(model.injection, {})
    outside = {
        "token_embedding.weight": f"{of.embedding}.weight",
        "final_norm.weight": f"{of.final_norm}.weight",
        "exit_projections.0.weight": f"{of.exit_projection}.weight",
        **{f"groups.0.{ours}": f"{of.prefix}adapter.{theirs}" for ours, theirs in adapter.items()},
    }
    if model.input_norm:
        outside["input_norms.0.weight"] = f"{of.input_norm}.weight"
    inside = LAYER | ({"heads.bias": ["attn.qk_bias"]} if model.qk_bias else {})
    return family.name_map(model, outside, lambda number: f"{of.prefix}{family.core_layer(model, number)}", inside)


def defaults(options: Options, names: Collection[str]) -> Defaults:
    """The mean number of loops; no exit criterion was published."""
    positions = options.count("block_size", "train_seq_len", default=layout(names).context)
    return Defaults(options.count("mean_recurrence"), {}, positions)


# the table of rotations, and gates of value embeddings, whose tables are absent
DROPPABLE = r"freqs_cis|.*\.attn\.ve_gate\.weight"
PARCAE = Family("Parcae", layer, tensors, DROPPABLE, defaults, "freqs_cis")
