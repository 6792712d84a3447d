"""The layers of the looped transformer, in the variants of the config (default: paper App. B).

`forward` of submodules is called directly, because `nn.Module.__call__` costs one row as much as a
norm does; hooks of these submodules do not run.

Axes: T positions, C hidden size, H query heads, G heads of keys and values, D head dimension, M
size of the MLP.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twoscale.config import ModelConfig
from twoscale.model.interface import Attend
from twoscale.model.kernels import Linear, RMSNorm, Undrawn, few_rows, linear

# --- rotary position embeddings (Su et al., arXiv 2104.09864) -------------------------------------


class RotaryEmbedding(nn.Module):
    """Rotates pairs of the first R channels of a head, by default all D.

    The angle of pair d is the position times the frequency base^(-2d/R). The tables hold sine and
    cosine of every position below the context length. They are computed in float64 and rounded
    once, to the dtype of the module, also when that changes.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.rotated = config, config.rotated_channels
        self.pairs, self.join = PAIRS[config.rotary_pairs]
        self.make_tables(torch.empty(()))  # on "meta" in a context of that device

    def make_tables(self, like: Tensor) -> None:
        """Compute the tables in the dtype and on the device of `like`."""
        config, size = self.config, self.rotated
        exponents = torch.arange(0, size, 2, dtype=torch.float64, device="cpu") / size  # 2d/R
        frequencies = config.rotary_base**-exponents  # radians per position (R/2,)
        if (scaling := config.rotary_scaling) is not None:
            # Llama 3.1: slow frequencies are divided by the factor, fast ones kept, those between
            # interpolated
            rotations = scaling.original_context_length * frequencies / (2 * math.pi)
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            share = ((rotations - low) / (high - low)).clamp(0, 1)  # 0 for slow, 1 for fast
            frequencies = (1 - share) * frequencies / scaling.factor + share * frequencies
        # without values on "meta", where a model is only compared with the tensors of a file
        device = "meta" if like.is_meta else "cpu"
        positions = torch.arange(config.context_length, dtype=torch.float64, device=device)
        angles = torch.outer(positions, frequencies.to(device))[:, None]  # (T, 1, R/2)
        # not persistent: they follow from the config, so no checkpoint has them
        self.register_buffer("cos", angles.cos().to(like), persistent=False)
        self.register_buffer("sin", angles.sin().to(like), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        # what `nn.Module` calls to change dtype and device
        before = self.cos
        super()._apply(fn, recurse)
        # the conversion has rounded tables that were rounded before
        if self.cos is not before:
            self.make_tables(self.cos)
        return self

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (..., H, D) at `positions`, broadcastable to the leading axes -> (..., H, D)."""
        cos = self.cos[positions]  # (..., 1, R/2)
        sin = self.sin[positions]
        first, second = self.pairs(x[..., : self.rotated])  # (..., H, R/2)
        turned_first = first * cos - second * sin  # real part of the pair times e^{i angle}
        turned_second = second * cos + first * sin  # imaginary part
        rotated = self.join(turned_first, turned_second)
        if self.rotated == x.shape[-1]:
            return rotated
        # under autocast x is in bfloat16, and a product with the float32 tables is in float32
        return torch.cat((rotated.to(x.dtype), x[..., self.rotated :]), dim=-1)


# rotary_pairs -> how the channels (..., D) are split into pairs, twice (..., D/2), and joined again
PAIRS: dict[str, tuple[Callable, Callable]] = {
    "interleaved": (
        # channels 0 and 1, 2 and 3, …
        lambda x: x.unflatten(-1, (-1, 2)).unbind(-1),
        lambda first, second: torch.stack((first, second), dim=-1).flatten(-2),
    ),
    "halves": (
        # channels d and d + R/2
        lambda x: x.chunk(2, dim=-1),
        lambda first, second: torch.cat((first, second), dim=-1),
    ),
}

# --- one layer ------------------------------------------------------------------------------------

Heads = tuple[Tensor, Tensor, Tensor]  # queries (..., H, D), keys and values (..., G, D)


class TransformerBlock(nn.Module):
    """One transformer layer: attention and MLP, each on its own branch, without biases.

    Norms of a sandwich come before and after each of the two: `post_residual` normalises the sum, x
    <- n2(attention(n1 x) + x), as Geiping's code does; `branch` normalises only what is added, x <-
    x + n2(attention(n1 x)). `norms: pre` leaves out n2 and n4, `norms: post` leaves out n1 and n3.
    """

    def __init__(self, number: int, config: ModelConfig, rotary: RotaryEmbedding | None) -> None:
        super().__init__()
        size, kv_heads = config.hidden_size, config.kv_heads_of(number)
        self.number = number
        self.normalise_sum = config.norms == "sandwich" and config.sandwich == "post_residual"

        def norm(without: str) -> nn.Module:
            is_left_out = config.norms == without
            return nn.Identity() if is_left_out else RMSNorm(size, config.norm_epsilon)

        self.norm1 = norm(without="post")  # before attention
        self.norm2 = norm(without="pre")  # after it
        self.norm3 = norm(without="post")  # before the MLP
        self.norm4 = norm(without="pre")  # after it
        is_varied = rotary is not None or config.qk_bias or config.qk_norm
        if is_varied or kv_heads != config.num_heads:
            self.heads: nn.Module = VariedHeads(config, rotary, kv_heads)
        else:
            self.heads = EqualHeads(config.num_heads)
        # rows of the queries of all heads, then of the keys, then of the values
        self.qkv = Linear(size, (config.num_heads + 2 * kv_heads) * config.head_dim)
        self.value_embedding = None
        if number in config.value_embeddings:
            self.value_embedding = ValueEmbedding(config, kv_heads)
        self.attention_out = Linear(size, size)
        self.activation = ACTIVATIONS[config.activation]
        self.is_gated = config.mlp == "gated"
        width = config.mlp_width_of(number)
        # if gated: rows of the gate, then of the value
        self.mlp_in = Linear(size, 2 * width if self.is_gated else width)
        self.mlp_out = Linear(width, size)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """(..., C) -> (..., C); `attend` determines the leading axes."""
        normed = self.norm1.forward(x)
        q, k, v = self.heads.forward(self.qkv.forward(normed), attend)  # (..., H or G, D)
        if self.value_embedding is not None:
            v = self.value_embedding.forward(v, normed, attend)
        mixed = attend(self.number, q, k, v).flatten(-2)  # (..., C)
        x = self._add(x, self.attention_out, mixed, self.norm2)
        inner = self.mlp_in.forward(self.norm3.forward(x))  # (..., M), or (..., 2M) if gated
        if self.is_gated:
            gate, value = inner.chunk(2, dim=-1)
            inner = self.activation(gate) * value  # (..., M); SwiGLU with SiLU
        else:
            inner = self.activation(inner)
        return self._add(x, self.mlp_out, inner, self.norm4)

    def _add(self, x: Tensor, projection: Linear, branch: Tensor, norm: nn.Module) -> Tensor:
        """x (..., C) plus the projection of a branch (..., size of the branch) -> (..., C)."""
        if self.normalise_sum:
            return norm.forward(projection.added(x, branch))  # n(x + W branch)
        return x + norm.forward(projection.forward(branch))  # x + n(W branch)


def relu2(x: Tensor) -> Tensor:
    """Half the square of relu(x): (..., M) -> (..., M)."""
    return F.relu(x).square() / 2


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu2": relu2,
}

# --- heads ----------------------------------------------------------------------------------------


class EqualHeads(nn.Module):
    """Splits [Q; K; V] where all three have H heads and nothing else is done to them."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, qkv: Tensor, attend: Attend) -> Heads:
        # (..., 3 H D) -> (..., 3, H, D) -> three times (..., H, D)
        return qkv.unflatten(-1, (3, self.num_heads, -1)).unbind(-3)


class VariedHeads(nn.Module):
    """Splits [Q; K; V] into H, G and G heads.

    Queries and keys have norms over all heads, biases, rotation and norms of each head, in this
    order.
    """

    def __init__(self, config: ModelConfig, rotary: RotaryEmbedding | None, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads = (config.num_heads, kv_heads)
        self.rotary = rotary
        of_queries, of_keys = (count * self.head_dim for count in self.heads)
        self.channels = [of_queries, of_keys, of_keys]
        self.has_norms = config.qk_norm is True
        self.has_head_norms = config.qk_norm == "head"
        if self.has_norms:
            self.q_norm = RMSNorm(of_queries, config.norm_epsilon)
            self.k_norm = RMSNorm(of_keys, config.norm_epsilon)
        self.bias = None
        if config.qk_bias:  # of all query heads, then of all key heads, ((H + G) D,)
            self.bias = nn.Parameter(torch.zeros(of_queries + of_keys))

    def forward(self, qkv: Tensor, attend: Attend) -> Heads:
        q, k, v = qkv.split(self.channels, dim=-1)  # (..., H D), twice (..., G D)
        if self.has_norms:
            q = self.q_norm.forward(q)
            k = self.k_norm.forward(k)
        # together, so that bias, rotation and norm are computed once for both
        qk = torch.cat((q, k), dim=-1)  # (..., (H + G) D)
        if self.bias is not None:
            qk = qk + self.bias
        qk = qk.unflatten(-1, (-1, self.head_dim))  # (..., H + G, D)
        if self.rotary is not None:
            qk = self.rotary.forward(qk, attend.positions)
        if self.has_head_norms:
            # over the root mean square of each head, without weights
            mean_squares = qk.square().mean(-1, keepdim=True)
            qk = qk * (mean_squares + torch.finfo(qk.dtype).eps).rsqrt()
        q, k = qk.to(v.dtype).split(self.heads, dim=-2)  # autocast leaves sums in float32
        return q, k, v.unflatten(-1, (-1, self.head_dim))


class Embedding(Undrawn, nn.Embedding):
    """`torch.nn.Embedding` without initial values."""


class ExitGate(Undrawn, nn.Linear):
    """`torch.nn.Linear` with a bias and without initial values."""


class ValueEmbedding(nn.Module):
    """Adds a gated embedding of the token to the values of a layer (Parcae)."""

    def __init__(self, config: ModelConfig, kv_heads: int) -> None:
        super().__init__()
        self.table = Embedding(config.padded_vocab_size, kv_heads * config.head_dim)
        self.gate = Linear(config.value_gate_channels, kv_heads)

    def forward(self, v: Tensor, x: Tensor, attend: Attend) -> Tensor:
        """Values v (..., G, D) of the normed input x (..., C) -> (..., G, D)."""
        gate = 2 * self.gate.forward(x[..., : self.gate.in_features]).sigmoid()  # 0 … 2, (..., G)
        embedded = self.table(attend.tokens).unflatten(-1, v.shape[-2:])  # (..., G, D)
        return v + (gate[..., None] * embedded).to(v.dtype)


# --- groups ---------------------------------------------------------------------------------------


class LoopedGroup(nn.Module):
    """Consecutive layers that are looped, and how the input enters their loop steps."""

    def __init__(
        self, numbers: Sequence[int], config: ModelConfig, rotary: RotaryEmbedding | None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerBlock(number, config, rotary) for number in numbers)
        self.add_parameters(config)

    def add_parameters(self, config: ModelConfig) -> None:
        """Add the parameters of the injection: here there are none."""

    def project_input(self, entered: Tensor) -> Tensor:
        """The input's part of the injection, computed once: here the input, which no step uses."""
        return entered

    def project_state(self, state: Tensor, injected: Tensor) -> Tensor:
        """Input of the group's first layer: here the state."""
        return state

    def forward(self, state: Tensor, injected: Tensor, attend: Attend) -> Tensor:
        """One loop step f_g(x^k, e): (..., C) -> (..., C)."""
        x = self.project_state(state, injected)
        for layer in self.layers:
            x = layer.forward(x, attend)
        return x


class Adapter(Linear):
    """The projection of [state ; input] from 2C to C channels, computed in halves.

    Each half is (..., C) -> (..., C).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__(2 * hidden_size, hidden_size)

    def of_state(self, state: Tensor) -> Tensor:
        return linear(state, self.used_weight()[:, : state.shape[-1]])  # first C columns

    def of_input(self, entered: Tensor) -> Tensor:
        return linear(entered, self.used_weight()[:, entered.shape[-1] :])  # last C columns

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual` (..., C) + `of_state(x)`."""
        return residual + self.of_state(x)

    def prepare(self) -> None:
        """`Linear.prepare` of both halves."""
        state_half, input_half = self.weight.chunk(2, dim=1)  # each (C, C)
        self.of_state, self.added = few_rows(state_half)  # type: ignore[method-assign, assignment]
        self.of_input, _ = few_rows(input_half)  # type: ignore[method-assign, assignment]


class ProjectedGroup(LoopedGroup):
    """A looped group with the adapter that maps [state ; input] from 2C to C channels."""

    def add_parameters(self, config: ModelConfig) -> None:
        self.adapter = Adapter(config.hidden_size)

    def project_input(self, entered: Tensor) -> Tensor:
        return self.adapter.of_input(entered)

    def project_state(self, state: Tensor, injected: Tensor) -> Tensor:
        # W [x ; e] = W_x x + W_e e, and `injected` is W_e e
        return self.adapter.added(injected, state)


class DiagonalGroup(LoopedGroup):
    """A looped group whose first layer sees x * exp(-D * exp(A_log)) + D * (e B^T).

    D is softplus(dt_bias) (Parcae).
    """

    def add_parameters(self, config: ModelConfig) -> None:
        self.decay_bias = nn.Parameter(torch.zeros(config.hidden_size))  # A_log
        self.step_bias = nn.Parameter(torch.zeros(config.hidden_size))  # dt_bias
        self.of_input = Linear(config.hidden_size, config.hidden_size)  # B

    def project_input(self, entered: Tensor) -> Tensor:
        return F.softplus(self.step_bias) * self.of_input.forward(entered)  # D * (e B^T)

    def project_state(self, state: Tensor, injected: Tensor) -> Tensor:
        decay = (-F.softplus(self.step_bias) * self.decay_bias.exp()).exp()  # in 0 … 1, (C,)
        return state * decay + injected


class AddedGroup(LoopedGroup):
    """A looped group whose first layer sees the sum of state and input."""

    def project_state(self, state: Tensor, injected: Tensor) -> Tensor:
        return state + injected


class BoundaryGroup(LoopedGroup):
    """A looped group whose steps end with a norm and the scaled input (arXiv 2609.19107)."""

    def add_parameters(self, config: ModelConfig) -> None:
        self.input_scale = config.injection_scale
        self.step_norm = RMSNorm(config.hidden_size, config.norm_epsilon)

    def project_input(self, entered: Tensor) -> Tensor:
        return self.input_scale * entered

    def forward(self, state: Tensor, injected: Tensor, attend: Attend) -> Tensor:
        # x^{k+1} = n(layers(x^k)) + scale * e
        return self.step_norm.forward(super().forward(state, injected, attend)) + injected


GROUPS: dict[str, type[LoopedGroup]] = {
    "projection": ProjectedGroup,
    "diagonal": DiagonalGroup,
    "add": AddedGroup,
    "boundary": BoundaryGroup,
    "none": LoopedGroup,
}
