"""A decoder whose groups of layers are looped in latent space (paper §2 and App. B).

By default it is the paper's model; the keys of `ModelConfig` make it Huginn, Ouro, Parcae or a
retrofitted model.

`LoopedTransformer` implements `twoscale.model.interface.LoopedModel`. The model reads no files,
knows no exits and draws no random numbers: noise and attention are functions that the caller
passes.

Axes: B sequences, T positions, C hidden size, H heads, D head dimension, V vocabulary. Layers are
numbered from 1 as in the paper, groups from 0 in the order of their layers.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from twoscale.config import ModelConfig
from twoscale.model.interface import (
    Attend,
    CausalAttention,
    Noise,
    Stage,
    StageTrace,
    last,
    loop_states,
    run_stages,
)
from twoscale.model.kernels import Linear, RMSNorm, linear
from twoscale.model.layers import GROUPS, Embedding, ExitGate, RotaryEmbedding, TransformerBlock
from twoscale.model.loss import cross_entropies, linear_cross_entropy
from twoscale.rng import truncated_normal

# size of the random part in adapter_init = blend, relative to the share of its block
_BLEND_NOISE = 0.04


class LoopedTransformer(nn.Module):
    """The model of the paper; its weights come from `initialise` or from a checkpoint.

    Methods without a docstring are those of `LoopedModel` and `Gated`, which describe their
    options.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        size, epsilon = config.hidden_size, config.norm_epsilon
        self.token_embedding = Embedding(config.padded_vocab_size, size)
        rotary = RotaryEmbedding(config) if config.positions == "rotary" else None
        self.position_embedding = None if rotary else Embedding(config.context_length, size)
        self.final_norm = RMSNorm(size, epsilon)
        self.groups = nn.ModuleList()
        self.input_norms = nn.ModuleList()  # as many as groups, or none
        self.exit_projections = nn.ModuleList()
        for numbers in config.groups:
            self.groups.append(GROUPS[config.injection](numbers, config, rotary))
            if config.input_norm:
                self.input_norms.append(RMSNorm(size, epsilon))
            if config.exit_projection:
                self.exit_projections.append(Linear(size, size))
        # by the number of its first layer, so that sorted keys give the order of the pass
        stages = {numbers[0]: Stage(group=index) for index, numbers in enumerate(config.groups)}
        self.unlooped = nn.ModuleDict()
        for number in range(1, config.num_layers + 1):
            if not config.is_looped(number):
                self.unlooped[str(number)] = TransformerBlock(number, config, rotary)
                stages[number] = Stage(layer=number)
        self.stages = tuple(stages[first] for first in sorted(stages))  # in the order of the layers
        self.head = None if config.tied_head else Linear(size, config.padded_vocab_size)
        # without a gradient, unless train.exit_gate trains it
        self.gate = ExitGate(size, 1).requires_grad_(False) if config.exit_gate else None

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return (*self.groups, *self.unlooped.values())

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Token ids (..., T) at `positions` (T,) -> hidden states (..., T, C).

        The sum of the embeddings is multiplied by a factor, by default sqrt(C) (Geiping's embedding
        scale).
        """
        hidden = self.token_embedding(tokens)  # (..., T, C)
        if self.position_embedding is not None:
            # (T, C), added before the scale, which so applies to both embeddings
            hidden = hidden + self.position_embedding(positions)
        return hidden * self.config.embedding_factor

    def unlooped_layer(self, number: int, hidden: Tensor, attend: Attend) -> Tensor:
        return self.unlooped[str(number)](hidden, attend)

    def init_state(self, group: int, entered: Tensor, noise: Noise) -> Tensor:
        """The initial state x^0 of a group under the variant `state_init`, (..., C)."""
        match self.config.state_init:
            case "noise":
                return noise(group, 0, entered)  # drawn once per loop, as in Geiping's code
            case "input":
                return entered
            case "input_plus_noise":
                return entered + noise(group, 0, entered)
            case _:
                return torch.zeros_like(entered)

    def project_input(self, group: int, entered: Tensor) -> Tensor:
        if self.config.input_norm:
            entered = self.input_norms[group](entered)
        return self.groups[group].project_input(entered)  # type: ignore[operator]

    def project_state(self, group: int, state: Tensor, injected: Tensor) -> Tensor:
        return self.groups[group].project_state(state, injected)  # type: ignore[operator]

    def add_noise(self, group: int, k: int, state: Tensor, noise: Noise) -> Tensor:
        """x^k with the fresh noise of the variant `loop_noise`, or unchanged.

        x^0 gets none: with `state_init: noise` it is a draw of the same noise, so more would only
        widen it, and the other variants of `state_init` say themselves how much noise it has.
        """
        scale = self.config.loop_noise
        if not scale or not k:
            return state
        # `noise` has the deviation state_std, which the quotient turns into loop_noise
        return state + (scale / self.config.state_std) * noise(group, k, state)

    def recur(self, group: int, k: int, state: Tensor, injected: Tensor, attend: Attend) -> Tensor:
        state = self.groups[group](state, injected, attend)
        # `forward` is called directly, as in `twoscale.model.layers`
        return self.final_norm.forward(state) if self.config.loop_norm else state

    def finish(self, group: int, state: Tensor) -> Tensor:
        """Input of the next layers: the last state under `exit_norm` and `exit_projection`."""
        if self.config.exit_norm == "final_norm":
            state = self.final_norm(state)
        return self.exit_projections[group](state) if self.config.exit_projection else state

    def readout(self, hidden: Tensor) -> Tensor:
        """Final norm and head: (..., C) -> logits (..., V), without the padding of the vocabulary.

        States are read as they are where `loop_norm` has normalised them.
        """
        logits = linear(self._final(hidden), self.head_weight)[..., : self.config.vocab_size]
        cap = self.config.logit_softcap
        # a smooth limit: capped logits lie between -cap and cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @property
    def head_weight(self) -> Tensor:
        """The matrix of the head, (padded V, C)."""
        return self.token_embedding.weight if self.head is None else self.head.weight

    def exit_gate(self, state: Tensor) -> Tensor:
        """Ouro's probability of exit of a token that has not exited yet: (..., C) -> (...)."""
        return self.exit_gate_logit(state).sigmoid()

    def exit_gate_logit(self, state: Tensor) -> Tensor:
        assert self.gate is not None
        return self.gate(state).squeeze(-1)

    def _final(self, hidden: Tensor) -> Tensor:
        return hidden if self.config.loop_norm else self.final_norm(hidden)

    def loss(self, hidden: Tensor, targets: Tensor, shares: Tensor | None = None) -> Tensor:
        hidden, ids = hidden.flatten(0, -2), targets.flatten()  # (N, C), (N,)
        shares = None if shares is None else shares.flatten()
        # `linear_cross_entropy` knows no cap, so here the logits of all tokens are in memory
        if self.config.logit_softcap is not None:
            (losses,) = cross_entropies(self.readout(hidden)[None], ids[None])  # (N,)
            return (losses if shares is None else losses * shares).mean()
        normed, vocab_size = self._final(hidden), self.config.vocab_size
        return linear_cross_entropy(normed, self.head_weight, ids, vocab_size, shares)

    def trace(self, tokens: Tensor, loops: Sequence[int], noise: Noise) -> Iterator[StageTrace]:
        attend = CausalAttention.of(tokens)
        hidden = self.embed(tokens, attend.positions)
        yield StageTrace(None, hidden, [hidden], hidden)
        for stage in self.stages:
            entered = hidden
            if stage.is_group:
                steps = loops[stage.index]
                states = list(
                    loop_states(self, stage.index, entered, steps, lambda _: attend, noise)
                )
                hidden = self.finish(stage.index, states[-1])
            else:
                hidden = self.unlooped_layer(stage.index, entered, attend)
                states = [hidden]
            yield StageTrace(stage, entered, states, hidden)

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """Logits (B, T, V); takes the arguments of `hidden_states`."""
        return self.readout(self.hidden_states(*arguments, **options))

    def hidden_states(
        self, tokens: Tensor, loops: Sequence[int], noise: Noise, *options: Any, **named: Any
    ) -> Tensor:
        attend = CausalAttention.of(tokens)

        def layer(number: int, hidden: Tensor) -> Tensor:
            return self.unlooped_layer(number, hidden, attend)

        def group(index: int, hidden: Tensor) -> Tensor:
            arguments = (self, index, hidden, loops[index], lambda _: attend, noise)
            return self.finish(index, last(loop_states(*arguments, *options, **named)))

        return run_stages(self, self.embed(tokens, attend.positions), layer, group)

    def exit_states(
        self, tokens: Tensor, loops: int, noise: Noise, *options: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        attend = CausalAttention.of(tokens)

        def run(stages: Sequence[Stage], hidden: Tensor) -> Tensor:
            for stage in stages:
                hidden = self.unlooped_layer(stage.index, hidden, attend)
            return hidden

        # layers before the only group run once, those after it once for every exit
        place = self.stages.index(Stage(group=0))
        before, after = self.stages[:place], self.stages[place + 1 :]
        entered = run(before, self.embed(tokens, attend.positions))
        arguments = (self, 0, entered, loops, lambda _: attend, noise)
        _, *states = loop_states(*arguments, *options, **named)  # without x^0
        # one state at a time, so that compiled layers see one shape whatever the loop count
        hidden = [run(after, self.finish(0, state)) for state in states]
        return torch.stack(states), torch.stack(hidden)  # (K, B, T, C) twice


@torch.no_grad()
def initialise(config: ModelConfig, seed: int) -> LoopedTransformer:
    """An untrained model: truncated normal matrices (±3 deviations), norms at 1, biases at 0.

    The standard deviation, before truncation, is sqrt(2 / 5C) for matrices and embeddings. For the
    output projections of attention and MLP it is divided by sqrt(2 L) with L the layers applied per
    token at the mean loop count (Geiping's code, after Takase et al.); so is the value half of a
    gated MLP's first matrix.

    Each parameter has its own random stream, (seed, "init", name), so that a further parameter
    changes no other.
    """
    model, size = LoopedTransformer(config), config.hidden_size
    matrix_std = math.sqrt(2 / (5 * size))
    output_factor = 1 / math.sqrt(2 * config.effective_depth)  # 1 / sqrt(2 L)
    for name, parameter in model.named_parameters():
        # weights of norms are the only vectors whose names do not end with "bias"
        if parameter.dim() < 2:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        is_output = name.endswith(("attention_out.weight", "mlp_out.weight"))
        std = matrix_std * output_factor if is_output else matrix_std
        # the streams of unlooped layers keep the name of their first version, so that a seed keeps
        # its weights
        stream = (seed, "init", name.replace("unlooped.", "single.", 1))
        parameter.copy_(torch.from_numpy(truncated_normal(stream, tuple(parameter.shape), std)))
        if name.endswith("mlp_in.weight") and config.mlp == "gated":
            parameter[len(parameter) // 2 :] *= output_factor  # the half of the values
        if name.endswith("adapter.weight") and config.adapter_init == "blend":
            # [share times the state ; 1 - share times the input], and random parts in proportion to
            # these shares, so that the half of a share of 0 is zero
            shares = (config.adapter_share, 1 - config.adapter_share)
            for half, share in zip(parameter.split(size, dim=1), shares, strict=True):
                half.mul_(_BLEND_NOISE * share).add_(torch.eye(size) * share)
    return model
