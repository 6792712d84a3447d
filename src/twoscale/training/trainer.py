"""One segment of training: from checkpoint a to checkpoint b, the same bits wherever it is cut.

The recipe is nanoGPT's (App. B): AdamW, decay on matrices, clipping, warm-up and cosine. Everything random
is a function of (seed, iteration, purpose), so a segment needs no state but weights and moments.
"""

import contextlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.model import checkpoints
from twoscale import progress, rng
from twoscale import config
from twoscale.training.flops import flops_per_token
from twoscale.data.batches import Batches, Prefetched
from twoscale.model.checkpoints import Header
from twoscale.errors import InputError
from twoscale.model.transformer import LoopedTransformer
from twoscale.model.noise import EvaluationNoise, training_noise
from twoscale.training.processes import World

ADAM_EPSILON = 1e-8
ALONE = World()
GRAPHS_PER_GROUP = 3  # a step before the gradient, the first one with it, and those whose state has one too
MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter


@dataclass
class TrainingState:
    """Where a run stands: model, optimizer, finished iterations, and the log of the segment so far."""

    model: LoopedTransformer
    optimizer: torch.optim.AdamW
    step: int
    tokens_seen: int
    log: list[dict[str, Any]] = field(default_factory=list)


def draw_loops(model: config.ModelConfig, seed: int, step: int) -> tuple[int, ...]:
    """Loop counts of iteration `step`, one per group (log-normal Poisson of Geiping et al., App. B).

    rate ~ LogNormal(ln r - sigma^2 / 2, sigma), so that its mean is r; K ~ Poisson(rate) + 1. One draw per
    group and iteration, shared by all micro-batches and processes; a group of several layers has one.
    """
    center = math.log(model.mean_loops) - model.loops_sigma**2 / 2
    counts = []
    for group in range(len(model.groups)):
        stream = rng.stream(seed, "loops", step, group)
        counts.append(int(stream.poisson(stream.lognormal(center, model.loops_sigma))) + 1)
    return tuple(counts)


def learning_rate(train: config.TrainConfig, step: int) -> float:
    """Rate of iteration `step`, counted from 0: linear warm-up, then a cosine to the minimum, as in nanoGPT.

    With lr_decay_iterations null it stays at its peak after the warm-up (Geiping et al.).
    """
    if step < train.warmup_iterations:
        return train.learning_rate * (step + 1) / (train.warmup_iterations + 1)
    if train.lr_decay_iterations is None:
        return train.learning_rate
    if step >= train.lr_decay_iterations:
        return train.min_learning_rate
    done = (step - train.warmup_iterations) / (train.lr_decay_iterations - train.warmup_iterations)
    return (
        train.min_learning_rate + (train.learning_rate - train.min_learning_rate) * (1 + math.cos(math.pi * done)) / 2
    )


def make_optimizer(model: LoopedTransformer, train: config.TrainConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices and embeddings and none on the norms' vectors, as in nanoGPT."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=train.learning_rate,
        betas=(train.beta1, train.beta2),
        eps=ADAM_EPSILON,
        fused=parameters[0].is_cuda or None,
    )


def autocast(device: str) -> contextlib.AbstractContextManager:
    """bf16 where the GPU has units for it, float32 elsewhere."""
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else contextlib.nullcontext()


def held_out_loss(
    model: LoopedTransformer, inputs: Tensor, targets: Tensor, loops: int, seed: int, batch: int
) -> float:
    """Mean cross-entropy in nats per token over held-out blocks (N, T) at a fixed loop count.

    Never compiled: a measurement that is seldom made would cost graphs of its own for each of its shapes.
    """
    device = next(model.parameters()).device
    total = 0.0
    with torch.no_grad(), autocast(device.type), torch.compiler.set_stance("force_eager"):
        for start in range(0, len(inputs), batch):
            rows = range(start, min(start + batch, len(inputs)))
            noise = EvaluationNoise(seed, rows, model.config.context_length)
            logits = model(inputs[rows.start : rows.stop].to(device), [loops] * len(model.groups), noise)
            wanted = targets[rows.start : rows.stop].to(device)
            total += F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="sum").item()
    return total / targets.numel()


class Trainer:
    """Runs the iterations of one configuration; holds what stays the same from one to the next."""

    def __init__(
        self,
        seed: int,
        device: str,
        model: config.ModelConfig,
        train: config.TrainConfig,
        tokens: np.ndarray,
        held_out: tuple[Tensor, Tensor],
        world: World = ALONE,
    ) -> None:
        self.seed, self.device, self.model, self.train, self.world = seed, device, model, train, world
        batches = Batches(tokens, model.context_length, train.batch_size, train.order, seed)
        self.batches = Prefetched(batches) if train.prefetch else batches
        self.held_out = held_out

    def iterate(self, state: TrainingState) -> None:
        """One optimizer step, and its row in the log."""
        started = time.perf_counter()
        loops = draw_loops(self.model, self.seed, state.iteration)
        rate = learning_rate(self.train, state.iteration)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        loss = self._accumulate_gradient(state, loops)
        gradient_norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), self.train.grad_clip).item()
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise InputError(
                f"training: iteration {state.iteration + 1} gave the loss {loss} and the gradient norm {gradient_norm}, "
                "expected finite numbers; the last checkpoint stays (a lower train.learning_rate may help)."
            )
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        state.iteration += 1
        state.tokens_seen += self.train.batch_size * self.model.context_length
        state.log.append(
            {
                "iteration": state.iteration,
                "tokens_seen": state.tokens_seen,
                "loss": loss,
                "held_out_loss": None,
                "learning_rate": rate,
                "gradient_norm": gradient_norm,
            }
            | self._speed(loops, time.perf_counter() - started)
            | {f"loops_g{label}": count for label, count in zip(self.model.group_labels, loops, strict=True)}
        )

    def _speed(self, loops: Sequence[int], seconds: float) -> dict[str, float | None]:
        """Tokens and model FLOPs per second of one iteration, and their share of the GPU's peak."""
        tokens_per_s = self.train.batch_size * self.model.context_length / seconds
        tflops = tokens_per_s * flops_per_token(self.model, loops, self.train.backprop_depth).total / 1e12
        peak = self.train.peak_tflops
        utilisation = tflops / (peak * self.world.size) if peak else None
        return {"tokens_per_s": tokens_per_s, "tflops": tflops, "utilisation": utilisation}

    def _accumulate_gradient(self, state: TrainingState, loops: Sequence[int]) -> float:
        """Mean loss of the batch of the next iteration; its gradient is left in the parameters.

        The batch is cut into micro-batches, each of which the processes share out; noise goes by the number
        of a sample in the batch, so the cuts change nothing but the order of sums.
        """
        train = self.train
        inputs, targets = (part.to(self.device, non_blocking=True) for part in self.batches[state.iteration])
        size = train.batch_size // (train.micro_batches * self.world.size)
        loss = torch.zeros((), device=self.device)
        for micro_batch in range(train.micro_batches):
            first = (micro_batch * self.world.size + self.world.rank) * size
            rows = slice(first, first + size)
            noise = training_noise(self.seed, state.iteration, first)
            with autocast(self.device):
                logits = state.model(inputs[rows], loops, noise, train.backprop_depth, train.recompute)
                part = F.cross_entropy(logits.flatten(0, 1).float(), targets[rows].flatten())
            (part / train.micro_batches).backward()
            loss += part.detach() / train.micro_batches
        self.world.average([loss, *(p.grad for p in state.model.parameters() if p.grad is not None)])
        return loss.item()

    def measure_held_out(self, state: TrainingState) -> None:
        """Note the held-out loss at the fixed loop count in the row of the last iteration.

        One process is enough for it; the others wait at their next average.
        """
        if not self.world.is_main:
            return
        state.log[-1]["held_out_loss"] = held_out_loss(
            state.model, *self.held_out, self.train.held_out_loops, self.seed, self.train.batch_size
        )


def run_segment(trainer: Trainer, state: TrainingState, until: int, partial: Path, identity: dict[str, Any]) -> None:
    """Iterate until step `until`; every train.save_seconds the state goes to the file `partial`."""
    train, start, is_main = trainer.train, state.iteration - len(state.log), trainer.world.is_main
    saved = time.monotonic()
    label, done = f"train {start} -> {until}", len(state.log)
    with progress.meter(label, until - start, "it", initial=done, shown=is_main) as bar:
        while state.iteration < until:
            trainer.iterate(state)
            if state.iteration % train.held_out_every == 0 or state.iteration == until:
                trainer.measure_held_out(state)
            row = state.log[-1]
            bar.set_postfix_str(f"loss {row['loss']:.3f}, {row['tokens_per_s']:.0f} tokens/s", refresh=False)
            bar.update(1)
            if is_main and time.monotonic() - saved >= train.save_seconds and state.iteration < until:
                save_partial(partial, state, identity)
                saved = time.monotonic()


def tensors_of(state: TrainingState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and AdamW's moments under the names of their parameters."""
    moments = {
        f"{name}.{moment}": state.optimizer.state[parameter][moment]
        for name, parameter in state.model.named_parameters()
        if parameter in state.optimizer.state
        for moment in MOMENTS
    }
    return dict(state.model.state_dict()), moments


def restore(
    model: config.ModelConfig,
    train: config.TrainConfig,
    device: str,
    weights: dict[str, Tensor],
    moments: dict[str, Tensor],
    header: Header,
) -> TrainingState:
    """The state that the tensors were taken from; without moments, the start of training."""
    made = LoopedTransformer(model).to(device)
    made.load_state_dict(weights)
    if device == "cuda" and train.compile:
        compile_steps(made)
    optimizer = make_optimizer(made, train)
    if moments:
        for name, parameter in made.named_parameters():
            taken = torch.tensor(float(header.iteration), device=parameter.device)
            optimizer.state[parameter] = {"iteration": taken} | {m: moments[f"{name}.{m}"] for m in MOMENTS}
    return TrainingState(made, optimizer, header.iteration, header.tokens_seen, list(header.extra.get("log", ())))


def compile_steps(model: LoopedTransformer, **options: Any) -> None:
    """Compile the step of every group and every single-pass layer, each once whatever the loop counts.

    `options` are those of torch.compile. Beyond its limit torch would run the rest uncompiled without a word.
    """
    limit = GRAPHS_PER_GROUP * max(1, len(model.groups))
    for module in (*model.groups, *model.unlooped.values()):
        module.compile(dynamic=False, recompile_limit=limit, **options)


def save_partial(path: Path, state: TrainingState, identity: dict[str, Any]) -> None:
    """All of an unfinished segment in one file, replaced in one step."""
    weights, moments = tensors_of(state)
    tensors = {f"weights/{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"optimizer/{name}": tensor for name, tensor in moments.items()}
    checkpoints.save(path, tensors, Header("partial", state.iteration, state.tokens_seen, identity, {"log": state.log}))


def load_partial(
    path: Path, start: int, until: int, identity: dict[str, Any], device: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], Header] | None:
    """What an interrupted attempt at this segment left: weights, moments, header; None if it left nothing.

    A file of another segment or configuration, or one that cannot be read, counts as nothing.
    """
    if not path.exists():
        return None
    try:
        tensors, header = checkpoints.load(path, "partial", identity, device)
    except InputError as error:
        print(f"starting the segment anew: {error}", file=sys.stderr)
        return None
    if not start < header.iteration < until or len(header.extra["log"]) != header.iteration - start:
        return None
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, inner = name.partition("/")
        parts[part][inner] = tensor
    return parts["weights"], parts["optimizer"], header
