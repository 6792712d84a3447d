"""Config of the model."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from twoscale.config.data import GPT2_VOCAB_SIZE
from twoscale.config.definitions import NOISE_STD, ModelSizes
from twoscale.config.types import (
    AdapterInit,
    AtLeastTwo,
    Count,
    Flag,
    HomePath,
    NonNegative,
    Number,
    Positive,
    Sandwich,
    Section,
    StateInit,
    WholeShare,
    key,
    option,
    require,
)

HALF = 0.5  # share of the state in the blend that the projection may start from
COMMIT = r"[0-9a-f]{40}"


class RotaryScaling(Section):
    """Scaling of the slow rotary frequencies for long contexts, as in Llama 3.1."""

    factor: Annotated[float, Field(ge=1), Number] = key(
        8.0, "Divisor of slow frequencies.", source="Llama 3.1"
    )
    low_frequency_factor: Positive = key(
        1.0,
        "A frequency is slow if it makes fewer rotations than this over original_context_length.",
        source="Llama 3.1",
    )
    high_frequency_factor: Positive = key(
        4.0,
        "A frequency is fast, and stays unchanged, if it makes more rotations than this over"
        " original_context_length.",
        source="Llama 3.1",
    )
    original_context_length: Count = key(
        8192, "Context length in tokens before scaling.", source="Llama 3.1"
    )


class ModelConfig(ModelSizes, Section):
    """Architecture of the model, and the source of its weights."""

    architecture: str = key(
        "transformer",
        "Name of the architecture. A name other than transformer loads the module"
        " twoscale.model.<name>.",
    )
    num_layers: Count = key(12, "Number of layers.", source="§2")
    num_heads: Count = key(
        12, "Number of attention heads per layer, a divisor of hidden_size.", source="§2"
    )
    hidden_size: Count = key(768, "Size of the hidden state.", source="§2")
    context_length: AtLeastTwo = key(
        512, "Tokens per sequence (the paper's block size).", source="§2"
    )
    vocab_size: Count = key(
        GPT2_VOCAB_SIZE, "Number of token ids of the tokenizer.", source="nanoGPT", derived=True
    )
    groups: tuple[Annotated[tuple[Count, ...], Field(min_length=1)], ...] = key(
        ((4,), (5, 6), (7,)),
        "Looped groups: lists of consecutive layers, numbered from 1. []: no loops, as in a plain"
        " GPT.",
        source="§2",
    )
    mean_loops: Positive = key(
        12.0,
        "Parameter r of the log-normal Poisson distribution of loop counts. It also defines the"
        " effective depth that scales the initial weights.",
        source="App. B",
    )
    loops_sigma: NonNegative = key(
        0.5, "Standard deviation of the log-normal distribution.", source="[G]"
    )
    sandwich: Sandwich = key(
        "post_residual",
        "Position of the second norm in sandwich normalization: after the residual sum, as in the"
        " code of [G], or on the branch before the sum. App. B does not specify it.",
        source="[G]",
    )
    state_init: StateInit = key(
        "noise",
        "Initial state of a looped group: noise, the group's input, their sum, or zeros.",
        source="§2, [G]",
    )
    loop_noise: NonNegative = key(
        0.0,
        'Standard deviation of noise added at every loop step. §2 ("each time the block is'
        ' applied") can also be '
        "read as a value above 0.",
        source="[G]",
    )
    adapter_init: AdapterInit = key(
        "random",
        "Initialization of the projection of state and input: random, or blend (ours), a weighted"
        " sum of state and input plus small noise. See adapter_share.",
        source="[G]",
    )
    adapter_share: WholeShare = option(
        HALF,
        "Share s of the state for adapter_init: blend. The projection starts as s times the state"
        " plus 1 - s times the input. Both terms also get random weights, scaled by 0.04 s and 0.04"
        " (1 - s). 0: only the input. 1: only the state.",
    )
    exit_norm: Literal["none", "final_norm"] = key(
        "none",
        "Norm applied to the state that a looped group returns. The paper mentions none; [G]"
        " applies final_norm.",
    )
    positions: Literal["learned", "rotary"] = option(
        "learned",
        "Position encoding: learned, an embedding added to the token embedding, or rotary, a"
        " rotation of queries and keys.",
        source="App. B",
    )
    rotary_pairs: Literal["interleaved", "halves"] = option(
        "interleaved",
        "Channels of a head that are rotated in pairs: 2d and 2d + 1 as in [G], or d and d + D/2 as"
        " in Llama.",
        source="[G]",
    )
    rotary_base: Positive = option(
        10_000.0, "Base of the rotary frequencies, base^(-2d/D).", source="arXiv 2104.09864"
    )
    rotary_scaling: RotaryScaling | None = option(
        None, "Scaling of the slow rotary frequencies. null: none."
    )
    rotary_channels: Count | None = option(
        None, "Number of leading channels of a head that are rotated; must be even. null: all."
    )
    num_kv_heads: Count | None = option(
        None,
        "Number of key and value heads, a divisor of num_heads. Each serves num_heads /"
        " num_kv_heads query heads. null: num_heads.",
        source="nanoGPT",
    )
    looped_kv_heads: Count | None = option(
        None, "Number of key and value heads in looped layers. null: num_kv_heads."
    )
    qk_bias: Flag = option(
        False, "Biases on queries and keys, added before the rotation, as in [G].", source="nanoGPT"
    )
    qk_norm: Flag | Literal["head"] = option(
        False,
        "RMSNorm of queries and keys. true: over all heads, as in OLMo 2. head: over each head"
        " after the rotation, without weights, as in Parcae.",
        source="nanoGPT",
    )
    value_embeddings: tuple[Count, ...] = option(
        (),
        "Layers that add to their values an embedding of the token, times a gate computed from the"
        " first 32 channels of the layer's normed input, as in Parcae.",
        source="nanoGPT",
    )
    mlp: Literal["plain", "gated"] = option(
        "plain",
        "MLP: plain, out(silu(in(x))), or gated as in [G] and Llama, out(silu(gate(x)) *"
        " value(x)).",
        source="App. B, nanoGPT",
    )
    activation: Literal["silu", "gelu", "relu2"] = option(
        "silu",
        "Activation of the MLP: silu, gelu (without approximation), or relu2 (half the square of"
        " relu, as in Parcae).",
        source="App. B",
    )
    mlp_size: Count | None = option(
        None, "Hidden size of the MLP. null: 4 times hidden_size.", source="nanoGPT"
    )
    looped_mlp_size: Count | None = option(
        None, "Hidden size of the MLP in looped layers. null: the same as in other layers."
    )
    norms: Literal["sandwich", "pre", "post"] = option(
        "sandwich",
        "Norms of a layer: sandwich, before and after attention and MLP; pre, only before them, as"
        " in Llama; or post, only after them, on the branch, as in OLMo 2.",
        source="App. B",
    )
    norm_epsilon: Positive = option(1e-6, "Epsilon of every RMSNorm.", source="[G]")
    embedding_scale: Positive | None = option(
        None,
        "Factor applied to the embedding. null: the square root of hidden_size, as in [G].",
        source="[G]",
    )
    state_std: Positive = option(
        NOISE_STD,
        "Standard deviation of the noise of state_init, before truncation at three standard"
        " deviations.",
        source="[G]",
    )
    injection: Literal["projection", "diagonal", "add", "boundary", "none"] = option(
        "projection",
        "Injection of the input e into a loop step: projection of [state ; e]; diagonal, x * exp(-D"
        " * exp(A_log)) + D * (e B^T) with D = softplus(dt_bias), as in Parcae (arXiv 2604.12946);"
        " add, x + e; boundary, a norm and + injection_scale * e after the layers (arXiv"
        " 2609.19107); or none, where e is only the initial state.",
        source="App. B, [G]",
    )
    injection_scale: Positive = option(
        1.0, "Factor of the input for injection: boundary.", source="arXiv 2609.19107"
    )
    input_norm: Flag = option(
        False,
        "RMSNorm on the input of a looped group before the injection, as in Parcae.",
        source="[G]",
    )
    exit_projection: Flag = option(
        False,
        "Linear projection of the state that a looped group returns, after exit_norm, as in"
        " Parcae.",
        source="[G]",
    )
    loop_norm: Flag = option(
        False,
        "Apply the final norm at the end of each loop step, as in Ouro (arXiv 2510.25741). The head"
        " then applies no further norm.",
        source="[G]",
    )
    tied_head: Flag = option(
        True, "Whether the head shares the weights of the token embedding.", source="[G]"
    )
    logit_softcap: Positive | None = option(
        None, "Soft cap c of the logits: the head's logits z become c * tanh(z / c). null: none."
    )
    exit_gate: Flag = option(
        False,
        "Linear gate that predicts an exit probability from a state, for the criterion exit_gate"
        " (Ouro). Trained with train.exit_gate.",
        source="[G]",
    )
    vocab_multiple: Count = option(
        64,
        "The number of embedding rows is vocab_size rounded up to a multiple of this (nanoGPT:"
        " 50257 -> 50304).",
        source="nanoGPT",
    )
    source: Literal["trained", "published"] = option(
        "trained",
        "Source of the weights: trained by this workflow, or published, given by repository and"
        " revision or by folder.",
    )
    repository: str | None = option(
        None, "Repository of a published model on the Hugging Face hub."
    )
    revision: Annotated[str, Field(pattern=f"^{COMMIT}$")] | None = option(
        None, "Commit of the repository, 40 hexadecimal digits."
    )
    folder: HomePath | None = option(
        None,
        "Local folder of a published model in the layout of the hub: config.json, safetensors"
        " files, tokenizer.json.",
    )

    def check_keys(self) -> None:
        self._check_heads()
        self._check_source()
        self._check_loops()

    def _check_heads(self) -> None:
        heads = self.num_heads
        size = self.head_dim
        expected = f"a divisor of model.hidden_size = {self.hidden_size}"
        require(self.hidden_size % heads == 0, "model.num_heads", heads, expected)
        for name in ("num_kv_heads", "looped_kv_heads"):
            count = getattr(self, name)
            expected = f"a divisor of model.num_heads = {heads}"
            require(not count or heads % count == 0, f"model.{name}", count, expected)
        is_even = self.positions != "rotary" or size % 2 == 0
        expected = f"an even head dimension for rotary positions, not {size}"
        require(is_even, "model.num_heads", heads, expected)
        rotated = self.rotated_channels
        is_possible = rotated == size or (rotated % 2 == 0 and rotated < size)
        expected = f"an even number up to the head dimension {size}"
        require(is_possible, "model.rotary_channels", rotated, expected)
        layers = list(self.value_embeddings)
        are_known = all(layer <= self.num_layers for layer in layers)
        expected = f"layers of 1 to {self.num_layers}"
        require(are_known, "model.value_embeddings", layers, expected)

    def _check_source(self) -> None:
        is_published = self.source == "published"
        origins = [name for name in ("repository", "folder") if getattr(self, name) is not None]
        found = " and ".join(origins) or "neither repository nor folder"
        expected = "one of the two" if is_published else "neither"
        expected += f" for model.source: {self.source}"
        require(len(origins) == is_published, "model", found, expected)
        together = (self.repository is None) == (self.revision is None)
        expected = "a commit together with model.repository, or neither"
        require(together, "model.revision", self.revision, expected)

    def _check_loops(self) -> None:
        share = self.adapter_share
        init = self.adapter_init
        expected = f"{HALF:g} unless model.adapter_init is blend, not {init}"
        require(share == HALF or init == "blend", "model.adapter_share", f"{share:g}", expected)
        sees_input = self.injection != "none" or self.state_init.startswith("input")
        expected = "input or input_plus_noise, the only input of a loop with model.injection: none"
        require(sees_input, "model.state_init", self.state_init, expected)
        last = 0  # layer of the groups so far
        for group in self.groups:
            found = f"the group {list(group)}"
            first = group[0]
            expected = "consecutive layers in ascending order"
            is_range = group == tuple(range(first, first + len(group)))
            require(is_range, "model.groups", found, expected)
            expected = "disjoint groups in the order of the layers"
            require(first > last, "model.groups", f"{found} after layer {last}", expected)
            last = group[-1]
            expected = f"layers between 1 and model.num_layers = {self.num_layers}"
            require(last <= self.num_layers, "model.groups", found, expected)
        expected = "false unless the last layer is looped, because the head then applies no norm"
        is_last = last == self.num_layers
        require(is_last or not self.loop_norm, "model.loop_norm", "true", expected)


def model_keys(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Keys of `model` with their values; random weights have no share of the state."""
    model = dict(zip(keys, values, strict=True))
    if model["adapter_init"] == "random":
        model["adapter_share"] = HALF
    return model
