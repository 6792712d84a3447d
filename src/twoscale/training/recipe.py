"""The recipe of training: the computation of one iteration.

It is nanoGPT's (App. B): AdamW, decay on matrices, clipping, warm-up and cosine. Loop counts, batches and noise are
functions of (seed, iteration, purpose), so an iteration needs no state but weights and moments.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from twoscale import rng
from twoscale.config import ModelConfig, TrainConfig
from twoscale.data.batches import Batches, HeldOut, Prefetched
from twoscale.model import registry
from twoscale.model.interface import Gated, LoopedModel, Noise
from twoscale.model.kernels import lowered_weights
from twoscale.model.loss import exit_log_probabilities
from twoscale.model.noise import DrawnNoise, EvaluationNoise, training_noise
from twoscale.model.registry import Loss
from twoscale.training.processes import World, reshard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def default_loss(
    model: LoopedModel, tokens: Tensor, targets: Tensor, loops: Sequence[int], noise: Noise, train: TrainConfig
) -> Tensor:
    """The `Loss` of an architecture without its own, see `twoscale.model.registry`."""
    if train.exit_gate is not None:
        return exit_gate_loss(cast(Gated, model), tokens, targets, loops[0], noise, train)
    return model.loss(model.hidden_states(tokens, loops, noise, train.backprop_depth, train.recompute), targets)


def exit_gate_loss(
    model: Gated, tokens: Tensor, targets: Tensor, loops: int, noise: Noise, train: TrainConfig
) -> Tensor:
    """Mean loss in nats of `tokens` (B, T) against the ids `targets` (B, T) after up to `loops` loop steps.

    This is Ouro's first stage (Zhu et al., arXiv 2510.25741). After loop step k the gate reads lambda^k from the state
    of a token, and p^k = lambda^k prod_{j<k} (1 - lambda^j) is the probability that the token leaves there; the rest is
    that of the last loop step. The loss of a token is

        sum_k p^k CE^k - beta H(p)

    with CE^k the cross-entropy if all tokens leave with their x^k, decoded through the layers after the group, and H
    the entropy of p in nats, which keeps p from collapsing onto one loop step: a uniform prior, up to a constant. Ouro
    has no layers after its group and a fixed number of loop steps; here p is over the loop steps drawn for the
    iteration. The gradient reaches the gate and, through both p and CE, the whole model.
    """
    assert train.exit_gate is not None
    states, hidden = model.exit_states(tokens, loops, noise, train.backprop_depth, train.recompute)  # (K, B, T, C)
    log_p = exit_log_probabilities(model.exit_gate_logit(states))  # (K, B, T)
    p = log_p.exp()
    # `loss` is a mean over exits too
    expected = loops * model.loss(hidden, targets.expand(p.shape), p)
    entropy = -(p * log_p).sum(0).mean()
    return expected - train.exit_gate.entropy_weight * entropy


ADAM_EPSILON = 1e-8
ALONE = World()


class SegmentConfig(Protocol):
    """The config of a segment: a slice with `model`, `train`, `seed` and `device`."""

    seed: int
    device: str
    model: ModelConfig
    train: TrainConfig


def draw_loops(model: ModelConfig, seed: int, iteration: int) -> tuple[int, ...]:
    """Loop counts of `iteration`, one per group (log-normal Poisson of Geiping et al., App. B).

    rate ~ LogNormal(ln r - sigma^2 / 2, sigma), so that its mean is r; K ~ Poisson(rate) + 1.
    """
    center = math.log(model.mean_loops) - model.loops_sigma**2 / 2
    counts = []
    for group in range(len(model.groups)):
        stream = rng.stream(seed, "loops", iteration, group)
        counts.append(int(stream.poisson(stream.lognormal(center, model.loops_sigma))) + 1)
    return tuple(counts)


def learning_rate(train: TrainConfig, iteration: int) -> float:
    """Rate of `iteration`, counted from 0: linear warm-up, then the peak, or a cosine to the minimum as in nanoGPT."""
    if iteration < train.warmup_iterations:
        return train.learning_rate * (iteration + 1) / (train.warmup_iterations + 1)
    if train.lr_decay_iterations is None:
        return train.learning_rate
    if iteration >= train.lr_decay_iterations:
        return train.min_learning_rate
    done = (iteration - train.warmup_iterations) / (train.lr_decay_iterations - train.warmup_iterations)
    height = train.learning_rate - train.min_learning_rate
    return train.min_learning_rate + height * (1 + math.cos(math.pi * done)) / 2


def make_optimizer(model: LoopedModel, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices and embeddings and none on the norms' vectors, as in nanoGPT."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (train.beta1, train.beta2)
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=betas, eps=ADAM_EPSILON, fused=True)


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager:
    """The context of a forward pass in `precision`, float32 or bfloat16, for float32 weights."""
    return torch.autocast(device, torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()


def held_out_loss(
    model: LoopedModel,
    held_out: HeldOut,
    loops: int,
    seed: int,
    batch_size: int,
    precision: str = "float32",
    drawn: DrawnNoise | None = None,
) -> float:
    """Mean cross-entropy in nats per token over held-out sequences at a fixed loop count; `drawn` keeps the noise."""
    # always eager: rare evaluation shapes would trigger recompilation
    device = next(model.parameters()).device
    total = 0.0
    with torch.no_grad(), autocast(device.type, precision), torch.compiler.set_stance("force_eager"):
        for batch in held_out.batches(batch_size):
            noise = EvaluationNoise.of(model.config, seed, batch.sequences, drawn)
            hidden = model.hidden_states(batch.inputs.to(device), [loops] * len(model.config.groups), noise)
            total += model.loss(hidden, batch.targets.to(device)).item() * batch.targets.numel()
    return total / held_out.targets.numel()


class Update(NamedTuple):
    """One optimizer update. On CUDA its numbers () may still be computed when it is returned."""

    loops: tuple[int, ...]
    learning_rate: float
    loss: Tensor
    gradient_norm: Tensor


class Recipe:
    """The optimizer updates of one config on the token shard `tokens` (N,)."""

    def __init__(self, config: SegmentConfig, tokens: np.ndarray, world: World = ALONE) -> None:
        self.seed, self.device, self.model, self.train = config.seed, config.device, config.model, config.train
        self.precision, self.world = config.train.precision_on(config.device), world
        self._loss: Loss = registry.architecture(self.model.architecture).loss or default_loss
        batches = Batches(tokens, self.model.context_length, self.train.batch_size, self.train.order, self.seed)
        self.batches = Prefetched(batches, pins=self.device == "cuda") if self.train.prefetch else batches

    def update(self, model: LoopedModel, optimizer: torch.optim.Optimizer, iteration: int) -> Update:
        """The update of `iteration`, counted from 0, in place; waits for no number."""
        loops = draw_loops(self.model, self.seed, iteration)
        rate = learning_rate(self.train, iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = self.accumulate_gradient(model, iteration, loops)
        gradient_norm = self.clip_gradient(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return Update(loops, rate, loss, gradient_norm)

    def accumulate_gradient(self, model: LoopedModel, iteration: int, loops: Sequence[int]) -> Tensor:
        """Mean loss () of the batch of an iteration; its gradient is left in the parameters.

        The batch is split into micro-batches, and each of them over the processes. Noise is a function of the number
        of a sample in the batch, so the split changes nothing but the order of sums.
        """
        inputs, targets = (part.to(self.device, non_blocking=True) for part in self.batches[iteration])  # (B, T)
        loss = torch.zeros((), device=self.device)
        # weights are rounded to bfloat16 once, not at every loop step; FSDP has to gather them first, so of a divided
        # model autocast rounds them
        lowered = model.blocks if self.precision == "bfloat16" and not self.train.shard else ()
        with lowered_weights(lowered, torch.bfloat16):
            for rows in self.world.parts(self.train.batch_size, self.train.micro_batches):
                if rows.start < rows.stop:
                    loss += self._add_gradient(model, iteration, inputs[rows], targets[rows], rows.start, loops)
        if self.train.shard:  # FSDP has averaged the gradients
            reshard(model)
            self.world.average([loss])
        else:
            # every process has a sample in the first micro-batch, so all have the same gradients
            self.world.average([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
        return loss

    def _add_gradient(
        self, model: LoopedModel, iteration: int, inputs: Tensor, targets: Tensor, first: int, loops: Sequence[int]
    ) -> Tensor:
        """Add the gradient of a part (B, T) of the batch that begins with sample `first`; its share of the loss, ()."""
        # 1 / parts times the 1 / size of the average over processes is the share of the batch that this part has
        parts = self.train.batch_size / (len(inputs) * self.world.size)
        noise = training_noise(self.seed, iteration, first, self.model.state_std)
        with autocast(self.device, self.precision):
            loss = self._loss(model, inputs, targets, loops, noise, self.train)
        (loss / parts).backward()
        return loss.detach() / parts

    def clip_gradient(self, model: LoopedModel) -> Tensor:
        """Limit the norm of the gradient to train.grad_clip; the norm before, ()."""
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), self.train.grad_clip)
        return cast("DTensor", norm).full_tensor() if self.train.shard else norm
