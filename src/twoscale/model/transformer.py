"""A GPT-2-like decoder whose groups of layers are looped in latent space (paper §2 and App. B).

The path of a text through the model is `embed`, then single-pass layers and looped groups in the order of
the layers, then `decode`. A group is entered with `inject` and `enter`, looped with `step`, left with
`leave`; `walk` strings these together and is what training and extraction run. Whoever loops by rules of
their own (the exit engines) calls the same verbs, so there is one recurrence in the project: `step`.

The model knows no files, no exits and no random numbers: noise comes in as a function, and attention is a
function too, so that an engine with a cache brings its own.

Axes: B sequences, T positions, C width, H heads, D width of a head, V vocabulary. Layers are numbered from
1 as in the paper, groups from 0 in the order of their layers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from twoscale import config
from twoscale import rng

# (layer number, q, k, v), each (..., H, D) -> (..., H, D)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
# (group, k, like) -> noise of the shape of `like`: k = 0 is the initial state, k >= 1 precedes step k
Noise = Callable[[int, int, Tensor], Tensor]

NORM_EPSILON = 1e-6  # of RMSNorm, as in Geiping's code
NOISE_STD = math.sqrt(2 / 5)  # of the initial state before truncation at three deviations (Geiping)
BLEND_NOISE = 0.02  # relative size of the random part in adapter_init = blend


@dataclass(frozen=True)
class Place:
    """Where on its way through the model a hidden state stands.

    stage: "embedding", "layer" (after the single-pass layer `layer`), "loop" (x^k of group `group`) or
    "left" (what goes on from `group`: x^K, or its norm under `exit_norm`).
    """

    stage: str
    layer: int | None = None
    group: int | None = None
    k: int | None = None


def causal_attention(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every position attends to itself and what stands before it; q, k, v (B, T, H, D)."""
    q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class TransformerBlock(nn.Module):
    """One transformer layer with sandwich normalisation (App. B), without biases, SiLU in the MLP.

    `post_residual` normalises the sum, x <- n2(attention(n1 x) + x), as Geiping's code does; `branch`
    normalises only what is added, x <- x + n2(attention(n1 x)).
    """

    def __init__(self, number: int, model: config.ModelConfig) -> None:
        super().__init__()
        width = model.hidden_size
        self.number = number
        self.heads = model.num_heads
        self.normalise_sum = model.sandwich == "post_residual"
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.RMSNorm(width, eps=NORM_EPSILON) for _ in range(4))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, attend: Attend = causal_attention) -> Tensor:
        """(..., C) -> (..., C); the leading axes are whatever `attend` takes."""
        x = self._add(x, self._attention(self.norm1(x), attend), self.norm2)
        return self._add(x, self.mlp_out(F.silu(self.mlp_in(self.norm3(x)))), self.norm4)

    def _attention(self, x: Tensor, attend: Attend) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        return self.attention_out(attend(self.number, q, k, v).flatten(-2))

    def _add(self, x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        return norm(x + branch) if self.normalise_sum else x + norm(branch)


class LoopedGroup(nn.Module):
    """A run of layers that is looped, and the adapter that feeds it [state ; input] from 2C to C."""

    def __init__(self, numbers: Sequence[int], model: config.ModelConfig) -> None:
        super().__init__()
        self.adapter = nn.Linear(2 * model.hidden_size, model.hidden_size, bias=False)
        self.layers = nn.ModuleList(TransformerBlock(number, model) for number in numbers)

    def project_input(self, entered: Tensor) -> Tensor:
        """The input's half of the adapter; it is the same at every step of a loop, so it is computed once."""
        return F.linear(entered, self.adapter.weight[:, entered.shape[-1] :])

    def project(self, state: Tensor, injected: Tensor) -> Tensor:
        """The adapter's output for [state ; input]: what the first layer of the group sees."""
        return F.linear(state, self.adapter.weight[:, : state.shape[-1]]) + injected

    def forward(self, state: Tensor, injected: Tensor, attend: Attend = causal_attention) -> Tensor:
        """One loop step f_g(x^k, e): (..., C) -> (..., C)."""
        x = self.project(state, injected)
        for layer in self.layers:
            x = layer(x, attend)
        return x


class LoopedTransformer(nn.Module):
    """The model of the paper; its weights come from `initialise` or a checkpoint."""

    def __init__(self, model: config.ModelConfig) -> None:
        super().__init__()
        self.config = model
        self.token_embedding = nn.Embedding(model.padded_vocab_size, model.hidden_size)
        self.position_embedding = nn.Embedding(model.context_length, model.hidden_size)
        self.final_norm = nn.RMSNorm(model.hidden_size, eps=NORM_EPSILON)
        self.groups = nn.ModuleList(LoopedGroup(numbers, model) for numbers in model.groups)
        looped = {number for group in model.groups for number in group}
        self.unlooped = nn.ModuleDict(
            {str(number): TransformerBlock(number, model) for number in range(1, model.num_layers + 1) if number not in looped}
        )
        self.stages = self._stages()

    def _stages(self) -> list[tuple[str, int]]:
        """("layer", number) or ("loop", group), in the order of the layers."""
        first_of = {numbers[0]: group for group, numbers in enumerate(self.config.groups)}
        stages = []
        for number in range(1, self.config.num_layers + 1):
            if number in first_of:
                stages.append(("loop", first_of[number]))
            elif str(number) in self.unlooped:
                stages.append(("layer", number))
        return stages

    def embed(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Token ids (B, T) at positions start, start + 1, … -> hidden states (B, T, C).

        The sum of the two embeddings is multiplied by sqrt(C) (Geiping's embedding scale).
        """
        positions = torch.arange(start, start + tokens.shape[-1], device=tokens.device)
        return (self.token_embedding(tokens) + self.position_embedding(positions)) * math.sqrt(self.config.hidden_size)

    def unlooped_layer(self, number: int, hidden: Tensor, attend: Attend = causal_attention) -> Tensor:
        return self.unlooped[str(number)](hidden, attend)

    def project_input(self, group: int, entered: Tensor) -> Tensor:
        """What each step of the group gets besides its state, for the hidden states (..., C) that enter."""
        return self.groups[group].project_input(entered)

    def project(self, group: int, state: Tensor, injected: Tensor) -> Tensor:
        """What the first layer of the group sees in place of the state: the adapter's output (..., C)."""
        return self.groups[group].project(state, injected)

    def init_state(self, group: int, entered: Tensor, noise: Noise) -> Tensor:
        """The initial state x^0 of a group under the reading `state_init`, like `entered` (..., C)."""
        match self.config.state_init:
            case "noise":
                return noise(group, 0, entered)
            case "input":
                return entered
            case "input_plus_noise":
                return entered + noise(group, 0, entered)
            case _:
                return torch.zeros_like(entered)

    def recur(self, group: int, state: Tensor, injected: Tensor, attend: Attend = causal_attention) -> Tensor:
        """The recurrence x^{k+1} = f_g(x^k, e): (..., C) -> (..., C)."""
        return self.groups[group](state, injected, attend)

    def add_noise(self, group: int, k: int, state: Tensor, noise: Noise) -> Tensor:
        """x^k with the fresh noise of the reading `loop_noise`, or as it is.

        x^0 is never disturbed: it is noise already, or is meant to be none.
        """
        scale = self.config.loop_noise
        return state + (scale / NOISE_STD) * noise(group, k, state) if scale and k else state

    def finish(self, group: int, state: Tensor) -> Tensor:
        """What the layers after a group see of its last state (reading `exit_norm`)."""
        return self.final_norm(state) if self.config.exit_norm == "final_norm" else state

    def readout(self, hidden: Tensor) -> Tensor:
        """Final norm and tied head: (..., C) -> logits (..., V), without the rows that only pad."""
        return F.linear(self.final_norm(hidden), self.token_embedding.weight)[..., : self.config.vocab_size]

    def walk(
        self,
        tokens: Tensor,
        loops: Sequence[int],
        noise: Noise,
        backprop_depth: int | None = None,
        recompute: bool = False,
    ) -> Iterator[tuple[Place, Tensor]]:
        """Every hidden state (B, T, C) on the way of `tokens` (B, T), from the embedding to the last layer.

        loops: steps of each group. backprop_depth: no gradient flows through a loop before its last n
        steps (Geiping's truncation; None: through all). recompute: keep one state per loop step for the
        backward pass and compute the rest again.
        """
        hidden = self.embed(tokens)
        yield Place("embedding"), hidden
        for stage, index in self.stages:
            if stage == "layer":
                hidden = self.unlooped_layer(index, hidden)
                yield Place("layer", layer=index), hidden
                continue
            for k, state in enumerate(self._loop(index, hidden, loops[index], noise, backprop_depth, recompute)):
                yield Place("loop", group=index, k=k), state
            hidden = self.finish(index, state)
            yield Place("left", group=index), hidden

    def _loop(
        self, group: int, entered: Tensor, steps: int, noise: Noise, backprop_depth: int | None, recompute: bool
    ) -> Iterator[Tensor]:
        """x^0 … x^steps of one group."""
        injected = self.project_input(group, entered)
        state = self.init_state(group, entered, noise)
        yield state
        first_with_gradient = 0 if backprop_depth is None else max(0, steps - backprop_depth)
        for k in range(steps):
            follows = torch.is_grad_enabled() and k >= first_with_gradient
            with torch.set_grad_enabled(follows):
                state = self.add_noise(group, k, state if follows else state.detach(), noise)
                if follows and recompute:
                    state = checkpoint(self.recur, group, state, injected, use_reentrant=False, preserve_rng_state=False)
                else:
                    state = self.recur(group, state, injected)
            yield state

    def forward(
        self,
        tokens: Tensor,
        loops: Sequence[int],
        noise: Noise,
        backprop_depth: int | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """Logits (B, T, V) of `tokens` (B, T) after `loops` steps of each group."""
        for _place, hidden in self.walk(tokens, loops, noise, backprop_depth, recompute):  # noqa: B007
            pass
        return self.readout(hidden)


def initial_std(model: config.ModelConfig, name: str) -> float:
    """Standard deviation, before truncation, of the parameter `name` (Geiping's code, after Takase et al.).

    sqrt(2 / 5C) for matrices and both embeddings; the output projections of attention and MLP are divided
    by sqrt(2 L) with L the layers applied per token at the mean loop count.
    """
    std = math.sqrt(2 / (5 * model.hidden_size))
    if name.endswith(("attention_out.weight", "mlp_out.weight")):
        return std / math.sqrt(2 * model.effective_depth)
    return std


@torch.no_grad()
def initialise(model: config.ModelConfig, seed: int) -> LoopedTransformer:
    """An untrained model: every matrix from a truncated normal (±3 deviations), every norm at one.

    Each parameter draws from a stream of its own, (seed, "init", name), so that adding one changes no other.
    """
    made = LoopedTransformer(model)
    for name, parameter in made.named_parameters():
        if parameter.dim() < 2:
            parameter.fill_(1.0)
            continue
        drawn = rng.truncated_normal((seed, "init", name), tuple(parameter.shape), initial_std(model, name))
        parameter.copy_(torch.from_numpy(drawn))
        if name.endswith("adapter.weight") and model.adapter_init == "blend":
            half = torch.eye(model.hidden_size) / 2
            parameter.mul_(BLEND_NOISE).add_(torch.cat([half, half], dim=1))
    return made
