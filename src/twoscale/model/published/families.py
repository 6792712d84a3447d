"""Families of published models: their config.json and tensors as our section `model` and weights.

A family is one entry of `FAMILIES`: a function that reads a config.json, and the names of its
tensors. Nothing here needs torch.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twoscale.base import InputError, first_line
from twoscale.config import ModelConfig
from twoscale.config.criteria import FACTS
from twoscale.config.data import GPT2_VOCAB_SIZE
from twoscale.config.types import LONGEST_VALUE, parse_json

# Name of a published tensor -> its shape.
Shapes = Mapping[str, tuple[int, ...]]
HEAD = "lm_head.weight"
# Keys of `model` that all or most families share.
_SHARED = {
    "positions": "rotary",
    "vocab_multiple": 1,
    "exit_norm": "none",
    "loop_norm": False,
    "exit_gate": False,
}


@dataclass(frozen=True)
class Description:
    """A published model as its config.json and tensors describe it.

    model: keys of the section `model`. loops, criteria: published loop steps, and exit criterion ->
    thresholds. max_context_length: positions that it knows.
    """

    model: dict[str, Any]
    vocab_size: int
    max_context_length: int
    loops: int
    criteria: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Names:
    """Names of published tensors: ours -> theirs, or a list of those that are the rows of ours.

    An empty list stands for ones. outside: parameters outside of layers. inside: parameters of a
    layer, both without the beginnings of their names. beginning: (our model, number of a layer) ->
    the beginning of its tensors' names.
    """

    outside: Mapping[str, str | Sequence[str]]
    inside: Mapping[str, str | Sequence[str]]
    beginning: Callable[[ModelConfig, int], str]

    def of(self, model: ModelConfig, parameter: str) -> list[str]:
        """The published tensors of a parameter of a model."""
        if parameter == "head.weight" or parameter in self.outside:
            return _listed(self.outside.get(parameter, HEAD))
        # such as unlooped.3.qkv.weight, and groups.0.layers.1.qkv.weight
        match parameter.split(".", 4):
            case ["unlooped", number, *rest]:
                layer, name = int(number), ".".join(rest)
            case ["groups", group, "layers", number, name]:
                layer = model.groups[int(group)][int(number)]
            case _:
                raise KeyError(parameter)
        return [f"{self.beginning(model, layer)}.{part}" for part in _listed(self.inside[name])]


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


@dataclass(frozen=True)
class Family:
    """Published models with one config.json format and one naming of tensors.

    Attributes:
        name: Its name in messages.
        describe: (config.json, shapes of the tensors) -> the model.
        names: (our model, shapes of the tensors) -> names of its tensors.
        droppable: Pattern of the names of tensors that may be there and are not needed; a head that
            is tied, too.
        adapt: (config.json, name, published tensor as our rows) changes the rows to what our model
            multiplies by.
    """

    name: str
    describe: Callable[["Options", Shapes], Description]
    names: Callable[[ModelConfig, Shapes], Names]
    droppable: str
    adapt: Callable[["Options", str, Any], object] = lambda options, name, rows: None


class Options:
    """The keys of a config.json. Errors name the file and the key. Keys that nobody asks for are
    ignored.
    """

    def __init__(self, path: Path, values: Mapping[str, Any] | None = None) -> None:
        self.path = path
        try:
            self.values = (
                parse_json(path.read_bytes(), dict[str, Any]) if values is None else values
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read ({first_line(error)}), expected the config.json of a"
                f" published model."
            ) from error

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; its default where it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, *keys: str, default: int | None = None) -> int:
        """The whole number of at least 1 under the first of the keys that is there."""
        key = next((key for key in keys if self.get(key) is not None), keys[0])
        value = self.get(key, default)
        if type(value) is not int or value < 1:
            raise self.error(key, "a whole number of at least 1")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """The finite number above 0 under a key."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.error(key, "a number above 0")
        return float(value)

    def choice(self, key: str, default: str, known: Collection[str]) -> str:
        """The string under a key, one of the known ones."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.error(key, f"one of {', '.join(known)}")
        return value

    def require(self, values: Mapping[str, Any]) -> None:
        """Refuse other values of these keys; a key that is absent or null is fine."""
        for key, value in values.items():
            if self.get(key, value) != value:
                raise self.error(key, json.dumps(value))

    def within(self, key: str) -> "Options":
        """The mapping under a key, empty where it is absent."""
        values = self.get(key, {})
        if not isinstance(values, dict):
            raise self.error(key, "a mapping")
        return Options(self.path, values)

    def error(self, key: str, expected: str) -> InputError:
        found = json.dumps(self.values[key])[:LONGEST_VALUE] if key in self.values else "nothing"
        return InputError(f"{self.path}: found {key} = {found}, expected {expected}.")


def _rotation(options: Options, default_base: float | None) -> dict[str, Any]:
    """`model.rotary_base` and `model.rotary_scaling`, as in Llama 3.1 or None.

    They are under rope_theta and rope_scaling, or from version 5 of transformers on together under
    rope_parameters.
    """
    together = options.within("rope_parameters")
    key = "rope_parameters" if together.values else "rope_scaling"
    if together.values:
        # a base in both places has to be the same one
        options.require({"rope_theta": together.get("rope_theta", options.get("rope_theta"))})
    scaling = options.within(key)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    of_layers = any(isinstance(value, dict) for value in scaling.values.values())
    if kind not in ("default", "llama3") or of_layers:
        raise options.error(key, "null or one rotation of the type llama3 for all layers")
    base = together if together.get("rope_theta") is not None else options
    factors = None
    if kind == "llama3":
        factors = {
            "factor": scaling.positive("factor"),
            "low_frequency_factor": scaling.positive("low_freq_factor"),
            "high_frequency_factor": scaling.positive("high_freq_factor"),
            "original_context_length": scaling.count("original_max_position_embeddings"),
        }
    return {"rotary_base": base.positive("rope_theta", default_base), "rotary_scaling": factors}


def _core_layer(core: Sequence[int], number: int) -> str:
    """Name of layer `number` in the code of Huginn and Parcae, which counts in each part from 0."""
    if number < core[0]:
        return f"prelude.{number - 1}"
    if number > core[-1]:
        return f"coda.{number - core[-1] - 1}"
    return f"core_block.{number - core[0]}"


# --- Ouro (Zhu et al., arXiv 2510.25741): all layers are looped; each loop ends with the final norm
# and an exit gate


def _describe_ouro(options: Options, shapes: Shapes) -> Description:
    """All of `total_ut_steps` loops or those up to `early_exit_step`; an exit by the gate at
    `early_exit_threshold`.
    """
    layers, size = options.count("num_hidden_layers"), options.count("hidden_size")
    heads = options.count("num_attention_heads")
    mean = options.count("total_ut_steps", default=4)
    # what their code can vary and our model cannot
    options.require(
        {
            "hidden_act": "silu",
            "use_sliding_window": False,
            "attention_bias": False,
            "mlp_bias": False,
            "layer_types": ["full_attention"] * layers,
            "head_dim": size // heads,
        }
    )
    last = options.get("early_exit_step", mean - 1)  # from 0
    if type(last) is not int:
        raise options.error("early_exit_step", "a whole number")
    loops = last + 1 if 0 <= last < mean else mean  # as their code does out of range
    model = _SHARED | {
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": options.count("num_key_value_heads", default=heads),
        "hidden_size": size,
        "groups": [list(range(1, layers + 1))],
        "mean_loops": mean,
        "norms": "sandwich",
        "sandwich": "branch",  # x + n(f(n x))
        "norm_epsilon": options.positive("rms_norm_eps", 1e-6),
        "state_init": "input",  # x^0 is the embedding
        "injection": "none",
        "loop_norm": True,  # the final norm ends every loop step
        "exit_gate": True,
        "rotary_pairs": "halves",
        **_rotation(options, 10_000.0),
        "mlp": "gated",
        "mlp_size": options.count("intermediate_size"),
        "embedding_scale": 1.0,
        "tied_head": bool(options.get("tie_word_embeddings", False)),
    }
    return Description(
        model,
        options.count("vocab_size"),
        max_context_length=options.count("max_position_embeddings", default=32768),
        loops=loops,
        criteria={"exit_gate": [options.positive("early_exit_threshold", 1.0)]},
    )


_OURO_NAMES = Names(
    {
        "token_embedding.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "gate.weight": "model.early_exit_gate.weight",
        "gate.bias": "model.early_exit_gate.bias",
    },
    {
        "norm1.weight": "input_layernorm.weight",
        "norm2.weight": "input_layernorm_2.weight",
        "norm3.weight": "post_attention_layernorm.weight",
        "norm4.weight": "post_attention_layernorm_2.weight",
        # rows of ours in this order
        "qkv.weight": [
            "self_attn.q_proj.weight",
            "self_attn.k_proj.weight",
            "self_attn.v_proj.weight",
        ],
        "attention_out.weight": "self_attn.o_proj.weight",
        "mlp_in.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],  # gate, value
        "mlp_out.weight": "mlp.down_proj.weight",
    },
    lambda model, number: f"model.layers.{number - 1}",
)


# --- Huginn (Geiping et al., arXiv 2502.05171), and models retrofitted with its loop
# (McLeish et al., arXiv 2511.07384)
# Their layers differ and are told apart by the tensors of a layer: Huginn's has four norms, that of
# a retrofitted Llama two before the branches, that of a retrofitted OLMo two after them and norms
# of queries and keys. The retrofitted models keep rotary embeddings, embedding scale and head of
# the model they come from, and have no norm where the loop ends.

# Norms of a layer, as in `model.norms`: our norm -> theirs.
_RAVEN_NORMS = {
    "sandwich": {f"norm{number}.weight": f"norm_{number}.weight" for number in (1, 2, 3, 4)},
    "pre": {"norm1.weight": "norm_1.weight", "norm3.weight": "norm_2.weight"},
    "post": {"norm2.weight": "norm_1.weight", "norm4.weight": "norm_2.weight"},
}
# Thresholds "auto" of the exit evaluators in Huginn's code.
_AUTO_THRESHOLDS: Mapping[str, Sequence[float]] = {
    name: [facts.published] for name, facts in FACTS.items() if facts.published is not None
}


def _describe_raven(options: Options, shapes: Shapes) -> Description:
    """The mean number of loops, and the exit criteria at the thresholds of Huginn's code."""
    size = options.count("n_embd", "hidden_size")
    heads = options.count("n_heads", "num_attention_heads")
    options.require(
        {
            "block_class_name": "SandwichBlock",
            "norm_class_name": "RMSNorm_llama",
            "mlp_class_name": "GatedMLP",
            "nonlin_name": "SiLU",
            "injection_type": "linear",
            "bias": False,
            "test_time_noise": False,
            "head_dim": size // heads,
        }
    )
    mode = options.choice("initial_state_mode", "random", ("random", "embed-init"))
    prelude = options.count("n_layers_in_prelude")
    core = options.count("n_layers_in_recurrent_block")
    coda = options.count("n_layers_in_coda")
    qk_bias = bool(options.get("qk_bias", True))
    if qk_bias:  # one bias of both in their code
        options.require({"num_key_value_heads": heads})
    init = options.within("init_values")
    scale = math.sqrt(size)
    if "transformer.core_block.0.norm_3.weight" in shapes:  # Huginn: four norms in a layer
        # Huginn's code takes the scale from the size and draws the first state, whatever the config
        # says
        variant = {
            "norms": "sandwich",
            "sandwich": "post_residual",  # n(x + f(n x))
            "exit_norm": "final_norm",
            "rotary_pairs": "interleaved",
            "rotary_base": options.positive("rope_base", 50_000.0),
            "rotary_scaling": None,
        }
    else:
        scale = init.positive("embed_scale", scale)
        is_olmo = "transformer.core_block.0.attn.q_norm.weight" in shapes
        norms = "post" if is_olmo else "pre"
        variant = {"norms": norms, "rotary_pairs": "halves", **_rotation(options, None)}
    # of the retrofitted models, only OLMo's code reads the mode
    starts_from_input = variant["norms"] == "post" and mode == "embed-init"
    loops = options.count("mean_recurrence", default=32)
    model = _SHARED | {
        "num_layers": prelude + core + coda,
        "num_heads": heads,
        "num_kv_heads": options.count("num_key_value_heads", default=heads),
        "hidden_size": size,
        "groups": [list(range(prelude + 1, prelude + core + 1))],
        "mean_loops": loops,
        "injection": "projection",
        "mlp": "gated",
        "mlp_size": options.count("intermediate_size"),
        **variant,
        "qk_bias": qk_bias,
        "qk_norm": variant["norms"] == "post",  # OLMo's
        "norm_epsilon": options.positive("norm_eps", 1e-6),
        "state_init": "input" if starts_from_input else "noise",
        "state_std": init.positive("std", math.sqrt(2 / (5 * size))) * scale,
        "embedding_scale": scale,  # the scale of the noise, too
        "tied_head": bool(options.get("tie_embeddings", True)),
    }
    return Description(
        model,
        options.count("padded_vocab_size", "vocab_size"),
        max_context_length=options.count("max_position_embeddings", "block_size", default=4096),
        loops=loops,
        criteria=_AUTO_THRESHOLDS,
    )


def _raven_names(model: ModelConfig, shapes: Shapes) -> Names:
    outside = {
        "token_embedding.weight": "transformer.wte.weight",
        "final_norm.weight": "transformer.ln_f.weight",
        "groups.0.adapter.weight": "transformer.adapter.weight",
    }
    inside = {
        "qkv.weight": "attn.Wqkv.weight",
        "heads.bias": "attn.qk_bias",
        "heads.q_norm.weight": "attn.q_norm.weight",
        "heads.k_norm.weight": "attn.k_norm.weight",
        "attention_out.weight": "attn.proj.weight",
        "mlp_in.weight": "mlp.fc.weight",
        "mlp_out.weight": "mlp.proj.weight",
    }
    return Names(
        outside,
        _RAVEN_NORMS[model.norms] | inside,
        lambda model, number: f"transformer.{_core_layer(model.groups[0], number)}",
    )


# --- Parcae (Prairie et al., arXiv 2604.12946): a prelude, a core that is looped with its input,
# a coda
# Two namings of tensors are read: Parcae's, and the one of the training script derived from it that
# names the embedding `tok_emb` and the projection after the core `project_out`. Sizes are read from
# the tensors, whatever config.json says.

_PARCAE_ACTIVATIONS = {"GELU": "gelu", "SiLU": "silu", "ReLU2": "relu2"}
_PARCAE_STATES = {"like-init": "noise", "zero": "zero"}
# Initialisations whose embedding has the deviation sqrt(2 / 5C) -> whether the embedding is
# multiplied by sqrt(C).
_PARCAE_STRATEGIES = {
    "scaled": False,
    "scaled-zero": False,
    "scaled-geiping": False,
    "small": False,
    "takase": True,
}


@dataclass(frozen=True)
class _Layout:
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

    @staticmethod
    def of(shapes: Shapes) -> "_Layout":
        """The naming of a folder."""
        if any(name.startswith("transformer.") for name in shapes):
            return _PARCAE_LAYOUT
        return _DERIVED_LAYOUT


_PARCAE_LAYOUT = _Layout(
    prefix="transformer.",
    embedding="transformer.wte",
    input_norm="transformer.ln_prelude",
    exit_projection="transformer.C",
    final_norm="transformer.ln_f",
    rope_base=50_000.0,
    norm_epsilon=1e-5,
    softcap=None,
    context=4096,
    state_std=None,
)
_DERIVED_LAYOUT = _Layout(
    prefix="",
    embedding="tok_emb",
    input_norm="prelude_norm_layer",
    exit_projection="project_out",
    final_norm="final_norm",
    rope_base=10_000.0,
    norm_epsilon=1e-6,
    softcap=30.0,
    context=1024,
    state_std=0.005,
)


def _describe_parcae(options: Options, shapes: Shapes) -> Description:
    """The mean number of loops; no exit criterion was published."""
    of = _Layout.of(shapes)
    _refuse_parcae(options, shapes, of)
    loops = options.count("mean_recurrence")
    cap = options.get("logit_softcap", of.softcap)
    rows, size = shapes[f"{of.embedding}.weight"]  # V, C
    # the scale of the embedding is also the scale of the noise
    strategy = options.choice("init_strategy", "scaled", _PARCAE_STRATEGIES)
    default_scale = math.sqrt(size) if _PARCAE_STRATEGIES[strategy] else 1.0
    scale = options.positive("emb_scale", default_scale)
    # of the noise, before the scale
    std = options.positive("tied_embed_init_std", of.state_std or math.sqrt(2 / (5 * size)))
    injection = "add"
    if f"{of.prefix}adapter.A_log" in shapes:
        injection = "diagonal"
    elif f"{of.prefix}adapter.adapter.weight" in shapes:
        injection = "projection"
    rope = options.within("rope_settings")
    rope.require({"use_rope": 1, "rope_condense_ratio": 1})
    # the base is in rope_settings, or at the top level
    rope = rope if rope.get("rope_base") is not None else options
    channels = options.get("rope_dims", 0) or None  # 0: all
    options.require({"outer_rope_dims": channels, "recurrent_rope_dims": channels})
    model = _SHARED | {
        **_parcae_sizes(options, shapes, of),
        "rotary_pairs": "interleaved",
        "rotary_base": rope.positive("rope_base", of.rope_base),
        "rotary_scaling": None,
        "rotary_channels": channels and options.count("rope_dims"),
        "state_init": _PARCAE_STATES[options.choice("state_init", "like-init", _PARCAE_STATES)],
        "embedding_scale": scale,
        "state_std": std * scale,
        "mean_loops": loops,
        "norms": "pre",
        "norm_epsilon": options.positive("norm_eps", of.norm_epsilon),
        "injection": injection,
        "input_norm": f"{of.input_norm}.weight" in shapes,
        "exit_projection": True,
        "qk_norm": "head" if options.get("qk_norm", False) else False,
        "activation": _PARCAE_ACTIVATIONS[
            options.choice("nonlin_name", "GELU", _PARCAE_ACTIVATIONS)
        ],
        "tied_head": bool(options.get("tie_embeddings", HEAD not in shapes)),
        "logit_softcap": cap and options.positive("logit_softcap", cap),
    }
    context = options.count("block_size", "train_seq_len", default=of.context)
    return Description(model, rows, context, loops, criteria={})


def _refuse_parcae(options: Options, shapes: Shapes, of: _Layout) -> None:
    """Refuse options and tensors that are not supported."""
    options.require(
        {
            "block_class_name": "TransformerPreNormBlock",
            "norm_class_name": "RMSNorm",
            "bias": 0,
            "use_abacus": 0,
            "debias_attention": 0,
            "center_attention": 0,
            "bigram_hash_buckets": 0,
            "mup_model_scaling_factor": 1,
            "logit_scale": 1,
            "clip_qkv": None,
            "randomize_positions_from": None,
            "recurrent_layer_rope_dims": "",
        }
    )
    core = f"{of.prefix}core_block.0"
    for name in (f"{of.embedding}.weight", f"{core}.attn.c_q.weight", f"{core}.mlp.fc.weight"):
        if name not in shapes:
            raise InputError(
                f"{options.path.parent}: found no tensor {name}, expected the tensors of Parcae."
            )


def _parcae_sizes(options: Options, shapes: Shapes, of: _Layout) -> dict[str, Any]:
    heads = options.count("num_attention_heads", "num_heads")
    _, size = shapes[f"{of.embedding}.weight"]
    head_dim = size // heads
    options.require(
        {
            "recurrent_num_attention_heads": heads,
            "recurrent_num_heads": heads,
            "head_dim": head_dim,
        }
    )

    def layers(part: str) -> int:
        start = f"{of.prefix}{part}."
        numbers = [
            name.removeprefix(start).split(".")[0] for name in shapes if name.startswith(start)
        ]
        return len(set(numbers))

    def layer_sizes(part: str) -> tuple[int, int]:
        """Heads of keys and values of the first layer of a part, and the hidden size of its MLP."""
        start = f"{of.prefix}{part}.0"
        keys = shapes.get(f"{start}.attn.c_k.weight", (head_dim,))
        inner = shapes.get(f"{start}.mlp.proj.weight", (1,))
        # keys have G D rows; the output matrix of the MLP has as many columns as its hidden size
        return max(1, keys[0] // head_dim), inner[-1]

    prelude, core, coda = (layers(part) for part in ("prelude", "core_block", "coda"))
    looped = range(prelude + 1, prelude + core + 1)
    outside = "prelude" if prelude else "coda"
    # layers outside of the core may have other sizes than those in it
    kv_heads, width = layer_sizes(outside if prelude or coda else "core_block")
    looped_kv_heads, looped_width = layer_sizes("core_block")
    # gate and value are the rows of one matrix
    is_gated = shapes[f"{of.prefix}core_block.0.mlp.fc.weight"][0] == 2 * looped_width
    # their code has tables without gates and gates without tables, and uses neither
    value_embeddings = []
    for number in range(1, prelude + core + coda + 1):
        gate = f"{of.prefix}{_core_layer(looped, number)}.attn.ve_gate.weight"
        if gate in shapes and f"value_embeds.{number - 1}.weight" in shapes:
            value_embeddings.append(number)
    return {
        "num_layers": prelude + core + coda,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "looped_kv_heads": looped_kv_heads,
        "qk_bias": f"{of.prefix}core_block.0.attn.qk_bias" in shapes,
        "hidden_size": size,
        "groups": [list(looped)],
        "value_embeddings": value_embeddings,
        "mlp": "gated" if is_gated else "plain",
        "mlp_size": width,
        "looped_mlp_size": looped_width,
    }


def _parcae_names(model: ModelConfig, shapes: Shapes) -> Names:
    of = _Layout.of(shapes)
    outside = {
        "token_embedding.weight": f"{of.embedding}.weight",
        "input_norms.0.weight": f"{of.input_norm}.weight",
        "groups.0.decay_bias": f"{of.prefix}adapter.A_log",
        "groups.0.step_bias": f"{of.prefix}adapter.dt_bias",
        "groups.0.of_input.weight": f"{of.prefix}adapter.B",
        "groups.0.adapter.weight": f"{of.prefix}adapter.adapter.weight",
        "exit_projections.0.weight": f"{of.exit_projection}.weight",
        "final_norm.weight": f"{of.final_norm}.weight",
    }
    inside = {
        "norm1.weight": "norm_1.weight",
        "norm3.weight": "norm_2.weight",
        "qkv.weight": ["attn.c_q.weight", "attn.c_k.weight", "attn.c_v.weight"],
        "heads.bias": "attn.qk_bias",
        "attention_out.weight": "attn.c_proj.weight",
        "mlp_in.weight": "mlp.fc.weight",
        "mlp_out.weight": "mlp.proj.weight",
        "value_embedding.gate.weight": "attn.ve_gate.weight",
    }
    (core,) = model.groups
    # in their files the tables are outside of the layers
    for number in model.value_embeddings:
        ours = f"groups.0.layers.{number - core[0]}" if number in core else f"unlooped.{number}"
        outside[f"{ours}.value_embedding.table.weight"] = f"value_embeds.{number - 1}.weight"
    return Names(outside, inside, lambda model, number: f"{of.prefix}{_core_layer(core, number)}")


# --- Loop-2, Loop-Grow and Operator-1 of Chen et al. (arXiv 2609.19107): each step of the core ends
# with a norm and the addition of the prelude's output. No norm has weights. Their `result.json` is
# the config.json.

_FLOAT32_EPSILON = 2.0**-23  # of every norm
_LADDER_NAMES = Names(
    {
        "token_embedding.weight": "transformer.wte.weight",
        "final_norm.weight": [],
        "groups.0.step_norm.weight": [],
    },
    {
        "norm1.weight": [],
        "norm3.weight": [],
        "qkv.weight": ["attn.c_q.weight", "attn.c_k.weight", "attn.c_v.weight"],
        "attention_out.weight": "attn.c_proj.weight",
        "mlp_in.weight": ["mlp.c_gate.weight", "mlp.c_fc.weight"],  # gate, value
        "mlp_out.weight": "mlp.c_proj.weight",
    },
    lambda model, number: f"transformer.h.{number - 1}",
)


def _describe_ladder(options: Options, shapes: Shapes) -> Description:
    """The core repetitions of the published evaluation; no exit criterion was published."""
    layers, core = options.count("n_layer"), options.count("core_layer_count")
    size, heads = options.count("n_embd"), options.count("n_head")
    prelude = options.count("prelude_layer_count", default=(layers - core) // 2)
    options.require(
        {
            "recurrence_rmsnorm": "recurrence_only",
            "decoder_inject": True,
            "output_multiplier": 1,
            "window_pattern": "L",
            "coda_layer_count": layers - prelude - core,
            "n_kv_head": heads,
        }
    )
    grown = "final_eval_active_core_repetitions"
    key = "core_repetitions" if options.get(grown) is None else grown
    loops = options.positive(key)
    if loops % 1:  # JSON may have it as a float
        raise options.error(key, "a whole number")
    model = _SHARED | {
        "num_layers": layers,
        "num_heads": heads,
        "hidden_size": size,
        "groups": [list(range(prelude + 1, prelude + core + 1))],
        "mean_loops": loops,
        "norms": "pre",
        "norm_epsilon": _FLOAT32_EPSILON,
        "state_init": "input",
        "injection": "boundary",
        "injection_scale": options.positive("recurrence_emb_alpha"),
        "rotary_pairs": "halves",
        "qk_norm": "head",
        "mlp": "gated",
        "mlp_size": shapes.get("transformer.h.0.mlp.c_fc.weight", (1,))[0],
        "embedding_scale": 1.0,
        "tied_head": False,
        "vocab_multiple": 64,
    }
    return Description(
        model,
        options.count("vocab_size", default=GPT2_VOCAB_SIZE),
        max_context_length=options.count("sequence_len", default=2048),
        loops=int(loops),
        criteria={},
    )


def _adapt_ladder(options: Options, name: str, rows: Any) -> None:
    """Norm of the embedding, factor of the branches, and the direction of the rotation."""
    if name == "transformer.wte.weight":
        rows *= (rows.square().mean(-1, keepdim=True) + _FLOAT32_EPSILON).rsqrt()
    elif name.endswith("c_proj.weight"):
        # c_proj ends the branches of attention and of the MLP
        rows *= options.positive("residual_branch_multiplier", 1.0)
    elif name.endswith(("c_q.weight", "c_k.weight")):
        halves = rows.unflatten(0, (options.count("n_head"), 2, -1))
        rows.copy_(halves.flip(1).flatten(0, 2))  # the other direction swaps the halves of a head


_OURO = Family(
    "Ouro", _describe_ouro, lambda model, shapes: _OURO_NAMES, r"model\.rotary_emb\.inv_freq"
)
_RAVEN = Family(
    "Huginn and retrofitted models",
    _describe_raven,
    _raven_names,
    r"freqs_cis|rotary_emb\.inv_freq",
)
# the table of rotations, and gates or tables of value embeddings without the other
_UNUSED = r"freqs_cis|.*\.attn\.ve_gate\.weight|value_embeds\.\d+\.weight"
_PARCAE = Family("Parcae", _describe_parcae, _parcae_names, _UNUSED)
_MULTIPLIERS = r"transformer\.h\.\d+\.residual_branch_multipliers"
_LADDER = Family(
    "the loop ladder",
    _describe_ladder,
    lambda model, shapes: _LADDER_NAMES,
    _MULTIPLIERS,
    _adapt_ladder,
)
# Value of the key of config.json that names the family. Parcae's code writes no model_type.
FAMILIES = {
    "huginn_raven": _RAVEN,
    "ouro": _OURO,
    "Parcae": _PARCAE,
    "ParcaeConfig": _PARCAE,
    "loop": _LADDER,
}
