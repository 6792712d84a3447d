"""A GPT-2-like decoder whose groups of layers are looped in latent space (paper §2 and App. B).

`LoopedTransformer` implements `twoscale.model.interface.LoopedModel`. The model reads no files, knows no
exits and draws no random numbers: noise and attention are functions that the caller passes.

Axes: B sequences, T positions, C hidden size, H heads, D head dimension, V vocabulary. Layers are numbered
from 1 as in the paper, groups from 0 in the order of their layers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from twoscale import rng
from twoscale.config import ModelConfig
from twoscale.model.interface import Attend, CausalAttention, Noise, Stage, StageTrace, run_stages
from twoscale.model.linear import Linear, linear
from twoscale.model.loss import linear_cross_entropy
from twoscale.model.noise import NOISE_STD
from twoscale.model.rms_norm import RMSNorm

NORM_EPSILON = 1e-6  # of RMSNorm, as in Geiping's code
BLEND_NOISE = 0.02  # relative size of the random part in adapter_init = blend


class TransformerBlock(nn.Module):
    """One transformer layer with sandwich normalisation (App. B), without biases, SiLU in the MLP.

    `post_residual` normalises the sum, x <- n2(attention(n1 x) + x), as Geiping's code does; `branch`
    normalises only what is added, x <- x + n2(attention(n1 x)).
    """

    def __init__(self, number: int, config: ModelConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.number = number
        self.num_heads = config.num_heads
        self.normalise_sum = config.sandwich == "post_residual"
        self.norm1, self.norm2, self.norm3, self.norm4 = (RMSNorm(size, NORM_EPSILON) for _ in range(4))
        self.qkv = Linear(size, 3 * size)
        self.attention_out = Linear(size, size)
        self.mlp_in = Linear(size, 4 * size)
        self.mlp_out = Linear(4 * size, size)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        """(..., C) -> (..., C); `attend` determines the leading axes."""
        # `forward` of submodules is called directly, because `nn.Module.__call__` costs one row as much as a norm does
        x = self._add(x, self._attention(self.norm1.forward(x), attend), self.norm2)
        return self._add(x, self._mlp(self.norm3.forward(x)), self.norm4)

    def _mlp(self, x: Tensor) -> Tensor:
        return self.mlp_out.forward(F.silu(self.mlp_in.forward(x)))

    def _attention(self, x: Tensor, attend: Attend) -> Tensor:
        q, k, v = self.qkv.forward(x).unflatten(-1, (3, self.num_heads, -1)).unbind(-3)  # (..., H, D) each
        return self.attention_out.forward(attend(self.number, q, k, v).flatten(-2))

    def _add(self, x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        return norm.forward(x + branch) if self.normalise_sum else x + norm.forward(branch)


class LoopedGroup(nn.Module):
    """Consecutive layers that are looped, and the adapter that maps [state ; input] from 2C to C channels."""

    def __init__(self, numbers: Sequence[int], config: ModelConfig) -> None:
        super().__init__()
        self.adapter = Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList(TransformerBlock(number, config) for number in numbers)

    def project_input(self, entered: Tensor) -> Tensor:
        """The input's half of the adapter. It is the same at every loop step, so it is computed once."""
        return linear(entered, self.adapter.weight[:, entered.shape[-1] :])

    def project_state(self, state: Tensor, injected: Tensor) -> Tensor:
        """The adapter's output for [state ; input]: what the first layer of the group sees."""
        return linear(state, self.adapter.weight[:, : state.shape[-1]]) + injected

    def forward(self, state: Tensor, injected: Tensor, attend: Attend) -> Tensor:
        """One loop step f_g(x^k, e): (..., C) -> (..., C)."""
        x = self.project_state(state, injected)
        for layer in self.layers:
            x = layer.forward(x, attend)
        return x


@dataclass(frozen=True)
class _Pass:
    """What all loops of one pass share; backprop_depth and recompute as in `LoopedTransformer.hidden_states`."""

    noise: Noise
    attend: Attend
    backprop_depth: int | None = None
    recompute: bool = False


class LoopedTransformer(nn.Module):
    """The model of the paper; its weights come from `initialise` or from a checkpoint."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.padded_vocab_size, config.hidden_size)
        self.position_embedding = nn.Embedding(config.context_length, config.hidden_size)
        self.final_norm = RMSNorm(config.hidden_size, NORM_EPSILON)
        self.groups = nn.ModuleList(LoopedGroup(numbers, config) for numbers in config.groups)
        self.stages = stages_of(config)
        numbers = [stage.layer for stage in self.stages if not stage.is_group]
        self.unlooped = nn.ModuleDict({str(number): TransformerBlock(number, config) for number in numbers})

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return (*self.groups, *self.unlooped.values())

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token ids (..., T) at `positions` (T,) -> hidden states (..., T, C).

        The sum of the two embeddings is multiplied by sqrt(C) (Geiping's embedding scale).
        """
        return (self.token_embedding(tokens) + self.position_embedding(positions)) * math.sqrt(self.config.hidden_size)

    def unlooped_layer(self, number: int, hidden: Tensor, attend: Attend) -> Tensor:
        """Layer `number`, outside all groups: (..., C) -> (..., C)."""
        return self.unlooped[str(number)](hidden, attend)

    def init_state(self, group: int, entered: Tensor, noise: Noise) -> Tensor:
        """The initial state x^0 of a group under the variant `state_init`, shaped like `entered` (..., C)."""
        match self.config.state_init:
            case "noise":
                return noise(group, 0, entered)
            case "input":
                return entered
            case "input_plus_noise":
                return entered + noise(group, 0, entered)
            case _:
                return torch.zeros_like(entered)

    def project_input(self, group: int, entered: Tensor) -> Tensor:
        """The input's half of the adapter, the same at every loop step: (..., C) -> (..., C)."""
        return self.groups[group].project_input(entered)

    def project_state(self, group: int, state: Tensor, injected: Tensor) -> Tensor:
        """What the first layer of the group sees in place of the state: the adapter's output (..., C)."""
        return self.groups[group].project_state(state, injected)

    def add_noise(self, group: int, k: int, state: Tensor, noise: Noise) -> Tensor:
        """x^k with the fresh noise of the variant `loop_noise`, or unchanged.

        x^0 gets none: it is noise already, or the config asks for an initial state without noise.
        """
        scale = self.config.loop_noise
        return state + (scale / NOISE_STD) * noise(group, k, state) if scale and k else state

    def recur(self, group: int, k: int, state: Tensor, injected: Tensor, attend: Attend) -> Tensor:
        """The recurrence x^{k+1} = f_g(x^k, e), the same function at every k: (..., C) -> (..., C)."""
        return self.groups[group](state, injected, attend)

    def finish(self, group: int, state: Tensor) -> Tensor:
        """What the layers after a group see of its last state (variant `exit_norm`)."""
        return self.final_norm(state) if self.config.exit_norm == "final_norm" else state

    def readout(self, hidden: Tensor) -> Tensor:
        """Final norm and tied head: (..., C) -> logits (..., V), without the padded rows of the embedding."""
        return linear(self.final_norm(hidden), self.token_embedding.weight)[..., : self.config.vocab_size]

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats of `readout(hidden)` (..., C) against token ids (...)."""
        normed, weight = self.final_norm(hidden).flatten(0, -2), self.token_embedding.weight
        return linear_cross_entropy(normed, weight, targets.flatten(), self.config.vocab_size)

    def trace(self, tokens: Tensor, loops: Sequence[int], noise: Noise) -> Iterator[StageTrace]:
        """The hidden states of `tokens` (B, T) stage by stage, see `LoopedModel.trace`."""
        attend = CausalAttention.of(tokens)
        hidden = self.embed(tokens, attend.positions)
        yield StageTrace(None, hidden, [hidden], hidden)
        for stage in self.stages:
            entered = hidden
            if stage.is_group:
                states = list(self._loop(stage.group, entered, loops[stage.group], _Pass(noise, attend)))
                hidden = self.finish(stage.group, states[-1])
            else:
                hidden = self.unlooped_layer(stage.layer, entered, attend)
                states = [hidden]
            yield StageTrace(stage, entered, states, hidden)

    def _loop(self, group: int, entered: Tensor, loops: int, of: _Pass) -> Iterator[Tensor]:
        """x^0 … x^loops of one group, each (B, T, C)."""
        injected = self.project_input(group, entered)
        state = self.init_state(group, entered, of.noise)
        yield state
        first_with_gradient = 0 if of.backprop_depth is None else max(0, loops - of.backprop_depth)
        for k in range(loops):
            with_gradient = torch.is_grad_enabled() and k >= first_with_gradient
            with torch.set_grad_enabled(with_gradient):
                # detached before the first step with gradient, so that none flows into the steps before it
                state = self.add_noise(group, k, state if with_gradient else state.detach(), of.noise)
                step = (group, k, state, injected, of.attend)
                if with_gradient and of.recompute:
                    state = checkpoint(self.recur, *step, use_reentrant=False, preserve_rng_state=False)
                else:
                    state = self.recur(*step)
            yield state

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """Logits (B, T, V); takes the arguments of `hidden_states`."""
        return self.readout(self.hidden_states(*arguments, **options))

    def hidden_states(
        self,
        tokens: Tensor,
        loops: Sequence[int],
        noise: Noise,
        backprop_depth: int | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """What `readout` and `loss` take: `tokens` (B, T) -> (B, T, C) after `loops` steps of each group.

        backprop_depth: no gradient flows through a loop before its last n steps (Geiping's truncation;
        None: through all). recompute: keep one state per loop step for the backward pass and compute the
        rest again.
        """
        attend = CausalAttention.of(tokens)
        of = _Pass(noise, attend, backprop_depth, recompute)

        def layer(number: int, hidden: Tensor) -> Tensor:
            return self.unlooped_layer(number, hidden, attend)

        def group(index: int, hidden: Tensor) -> Tensor:
            for state in self._loop(index, hidden, loops[index], of):  # noqa: B007
                pass  # only the last state is kept
            return self.finish(index, state)

        return run_stages(self, self.embed(tokens, attend.positions), layer, group)


def stages_of(config: ModelConfig) -> tuple[Stage, ...]:
    """The stages in the order of the layers."""
    looped = {number for group in config.groups for number in group}
    starts = {numbers[0]: Stage(group=index) for index, numbers in enumerate(config.groups)}
    unlooped = {number: Stage(layer=number) for number in range(1, config.num_layers + 1) if number not in looped}
    return tuple(stage for _, stage in sorted((starts | unlooped).items()))


def initial_std(config: ModelConfig, name: str) -> float:
    """Standard deviation, before truncation, of the parameter `name` (Geiping's code, after Takase et al.).

    sqrt(2 / 5C) for matrices and both embeddings; the output projections of attention and MLP are divided
    by sqrt(2 L) with L the layers applied per token at the mean loop count.
    """
    std = math.sqrt(2 / (5 * config.hidden_size))
    if name.endswith(("attention_out.weight", "mlp_out.weight")):
        return std / math.sqrt(2 * config.effective_depth)
    return std


@torch.no_grad()
def initialise(config: ModelConfig, seed: int) -> LoopedTransformer:
    """An untrained model: every matrix from a truncated normal (±3 deviations), every norm at one.

    Each parameter has its own random stream, (seed, "init", name), so that a further parameter changes no other.
    """
    model = LoopedTransformer(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        shape = tuple(parameter.shape)
        values = rng.truncated_normal((seed, "init", _stream_name(name)), shape, initial_std(config, name))
        parameter.copy_(torch.from_numpy(values))
        if name.endswith("adapter.weight") and config.adapter_init == "blend":
            half = torch.eye(config.hidden_size) / 2
            parameter.mul_(BLEND_NOISE).add_(torch.cat([half, half], dim=1))
    return model


def _stream_name(parameter: str) -> str:
    # the streams of unlooped layers keep the name of their first version, so that a seed keeps its weights
    return parameter.replace("unlooped.", "single.", 1)
