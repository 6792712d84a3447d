"""Training, from top to bottom: a segment from one checkpoint to the next, its iterations, and the
parts of one iteration.

The recipe is nanoGPT's (App. B): AdamW, decay on matrices, clipping, warm-up and cosine. Loop
counts, batches and noise are functions of (seed, iteration, purpose), so an iteration needs no
state but weights and moments, and the bits do not depend on interruptions.
"""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from twoscale import rng
from twoscale.base import InputError
from twoscale.config import ModelConfig, TrainConfig
from twoscale.data.batches import Batches, HeldOut, Prefetched, open_held_out
from twoscale.data.shards import TokenShard, open_shard
from twoscale.jobs import machine
from twoscale.model import registry
from twoscale.model.flops import exit_gate_flops
from twoscale.model.interface import Gated, LoopedModel, Noise
from twoscale.model.kernels import lowered_weights
from twoscale.model.loss import exit_log_probabilities
from twoscale.model.noise import DrawnNoise, EvaluationNoise, training_noise
from twoscale.model.registry import Loss
from twoscale.training.metrics_log import Record, monitoring
from twoscale.training.processes import (
    World,
    connected,
    destroy_distributed,
    init_distributed,
    reshard,
)
from twoscale.training.state import (
    Segment,
    SegmentConfig,
    SegmentPaths,
    TrainingState,
    load_state,
    note_environment,
    save_partial,
    write_segment,
)

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class TrainingData:
    """The token shard to train on (tokens,), and held-out sequences."""

    tokens: np.ndarray
    held_out: HeldOut

    @classmethod
    def open(cls, shard: TokenShard, config: SegmentConfig) -> "TrainingData":
        model, sequences = config.model, config.train.held_out_sequences
        tokens = open_shard(shard.train, shard.metadata, model.vocab_size)
        return cls(tokens, open_held_out(shard.val, shard.metadata, model, sequences))


# --- one segment: setup, iterations, outputs


def train_segment(
    config: SegmentConfig, data: TrainingData, segment: Segment, paths: SegmentPaths
) -> None:
    """Train from the latest saved state of the segment, and write its outputs.

    The outputs are the log, the optimizer state and the weights; the partial state is removed last.
    """
    train = config.train
    with connected(train.processes):
        # setup
        world = init_distributed(config.device, train.processes)
        state = load_state(config, segment, paths)
        _check_same_start(world, state, paths.partial)
        environment = machine.environment(config.device, world.size, train.nodes, train.shard)
        note_environment(state, paths.previous_log, environment, world.is_main)
        trainer = Trainer(config, data, world)
        identity = segment.partial_identity(paths.start[0])
        folder = paths.log.parent
        # iterations
        with monitoring(config, segment, state, folder, visible=world.is_main) as record:
            run_segment(trainer, state, segment.until, paths.partial, identity, record)
        # outputs
        write_segment(state, paths, segment.identity, world.is_main)
        destroy_distributed(world)


def run_segment(
    trainer: "Trainer",
    state: TrainingState,
    until: int,
    partial: Path,
    identity: dict[str, Any],
    record: Record = lambda row: None,
) -> None:
    """Iterate up to iteration `until`; every train.save_seconds the state is saved to `partial`.

    `record` is called with each row of the log. With train.shard all processes take part in a save,
    when the main one decides on it.
    """
    train, world = trainer.train, trainer.world
    saved = time.monotonic()
    while state.iteration < until:
        recorded = len(state.log)
        trainer.iterate(state)
        is_last = state.iteration == until
        if is_last or state.iteration % train.held_out_every == 0:
            trainer.measure_held_out(state)
        # after the last iteration the outputs of the segment follow, which replace a partial state
        saves = not is_last and time.monotonic() - saved >= train.save_seconds
        if state.sharded:
            saves = bool(world.gather_number(saves)[0])  # as the main process decides
        if saves:
            trainer.log_last_iteration(state)  # nothing that is not finite is saved
        for row in state.log[recorded:]:  # on CUDA a row comes one iteration late
            record(row)
        if saves:
            save_partial(partial, state, identity, world.is_main)
            saved = time.monotonic()


def _check_same_start(world: World, state: TrainingState, partial: Path) -> None:
    """Refuse nodes that do not see the same files."""
    starts = sorted(set(world.gather_number(state.iteration)))
    if len(starts) > 1:
        found = f"states after iterations {', '.join(map(str, starts))} on the nodes"
        raise InputError(
            f"{partial}: found {found}, expected the same state on all nodes; start it again."
        )


# --- one iteration

ALONE = World()


class Trainer:
    """Runs the iterations of one config; holds what is the same for all of them."""

    def __init__(self, config: SegmentConfig, data: TrainingData, world: World = ALONE) -> None:
        self.seed = config.seed
        self.device = config.device
        self.model = config.model
        self.train = config.train
        self.precision = config.train.precision_on(config.device)
        self.world = world
        self.held_out = data.held_out
        self._loss: Loss = registry.architecture(self.model.architecture).loss or _default_loss
        batches = Batches(
            data.tokens,
            self.model.context_length,
            self.train.batch_size,
            self.train.order,
            self.seed,
        )
        pins = self.device == "cuda"  # page-locked memory, from which copies do not block the host
        self.batches = Prefetched(batches, pins) if self.train.prefetch else batches
        self._held_out_noise = DrawnNoise()  # the same at every measurement
        # row and numbers of the last iteration, if they are not in the log yet
        self._unread: tuple[dict[str, Any], Timer] | None = None

    def iterate(self, state: TrainingState) -> None:
        """One optimizer update, and its row in the log.

        On CUDA the row comes with the next iteration or with `log_last_iteration`, so that the host
        queues an iteration while the device computes the one before.
        """
        timer = Timer(self.device)
        # what this iteration is: loop counts and learning rate
        loops = draw_loops(self.model, self.seed, state.iteration)
        rate = learning_rate(self.train, state.iteration)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        # gradient and step
        loss = self.accumulate_gradient(state.model, state.iteration, loops)
        gradient_norm = self.clip_gradient(state.model)
        state.optimizer.step()
        state.optimizer.zero_grad()
        # log
        state.iteration += 1
        state.tokens_seen += self.train.batch_size * self.model.context_length
        timer.stop(loss, gradient_norm)
        self.log_last_iteration(state)  # of the iteration before
        row = {
            "iteration": state.iteration,
            "tokens_seen": state.tokens_seen,
            "learning_rate": rate,
            "held_out_loss": None,
            "loops": list(loops),
        }
        self._unread = row, timer
        if self.device == "cpu":
            self.log_last_iteration(state)

    def accumulate_gradient(
        self, model: LoopedModel, iteration: int, loops: Sequence[int]
    ) -> Tensor:
        """Mean loss () of the batch of an iteration; its gradient is left in the parameters.

        The batch is split into micro-batches, and each of them over the processes. Noise is a
        function of the number of a sample in the batch, so the split changes nothing but the order
        of sums.
        """
        inputs, targets = (
            part.to(self.device, non_blocking=True) for part in self.batches[iteration]
        )  # (B, T)
        loss = torch.zeros((), device=self.device)  # a Python number would wait for the device
        # weights are rounded to bfloat16 once, not at every loop step; FSDP has to gather them
        # first, so of a divided model autocast rounds them
        lowered = model.blocks if self.precision == "bfloat16" and not self.train.shard else ()
        with lowered_weights(lowered, torch.bfloat16):
            for rows in self.world.parts(self.train.batch_size, self.train.micro_batches):
                count = rows.stop - rows.start
                if not count:
                    continue
                # 1 / parts times the 1 / size of the average over processes is the share of the
                # batch in `rows`
                parts = self.train.batch_size / (count * self.world.size)
                noise = training_noise(self.seed, iteration, rows.start, self.model.state_std)
                with autocast(self.device, self.precision):
                    part = self._loss(model, inputs[rows], targets[rows], loops, noise, self.train)
                (part / parts).backward()  # adds to the gradients of the parts before
                loss += part.detach() / parts
        if self.train.shard:  # FSDP has averaged the gradients
            reshard(model)
            self.world.average([loss])
        else:
            # every process has a sample in the first micro-batch, so all have the same gradients
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            self.world.average([loss, *gradients])
        return loss

    def clip_gradient(self, model: LoopedModel) -> Tensor:
        """Limit the norm of the gradient to train.grad_clip; the norm before, ()."""
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), self.train.grad_clip)
        # with FSDP the norm of a process is that of its parts until it is combined
        return cast("DTensor", norm).full_tensor() if self.train.shard else norm

    def log_last_iteration(self, state: TrainingState) -> None:
        """Append the row of the last iteration to the log, if it is not there; waits for the
        device.
        """
        if self._unread is None:
            return
        row, timer = self._unread
        self._unread = None
        (loss, gradient_norm), seconds = timer.read()
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise InputError(
                f"training: found the loss {loss} and the gradient norm {gradient_norm} at"
                f" iteration {row['iteration']}, expected finite numbers; a lower"
                " train.learning_rate may help."
            )
        numbers = {"loss": loss, "gradient_norm": gradient_norm}
        state.log.append(row | numbers | self._speed(row["loops"], seconds))

    def _speed(self, loops: Sequence[int], seconds: float) -> dict[str, float | None]:
        """Tokens and model FLOPs per second of one iteration, and their share of the GPU's peak."""
        tokens_per_s = self.train.batch_size * self.model.context_length / seconds
        architecture = registry.architecture(self.model.architecture)
        # model FLOPs: those of recomputation do not count
        flops = architecture.flops(self.model, loops, self.train.backprop_depth)
        if self.train.exit_gate is not None:
            flops += exit_gate_flops(self.model, loops[0])
        tflops = tokens_per_s * flops.total / 1e12
        peak = self.train.peak_tflops  # of one GPU
        utilisation = tflops / (peak * self.world.size) if peak else None
        return {"tokens_per_s": tokens_per_s, "tflops": tflops, "utilisation": utilisation}

    def measure_held_out(self, state: TrainingState) -> None:
        """Write the held-out loss at the fixed loop count into the row of the last iteration.

        The main process measures it; the others wait at their next average. With train.shard all
        measure it, because no process has the whole model.
        """
        self.log_last_iteration(state)
        if not self.world.is_main and not state.sharded:
            return
        state.log[-1]["held_out_loss"] = held_out_loss(
            state.model,
            self.held_out,
            self.train.held_out_loops,
            self.seed,
            self.train.batch_size,
            self.precision,
            self._held_out_noise,
        )
        if state.sharded:
            reshard(state.model)


# --- what an iteration is a function of


def draw_loops(model: ModelConfig, seed: int, iteration: int) -> tuple[int, ...]:
    """Loop counts of `iteration`, one per group (log-normal Poisson of Geiping et al., App. B)."""
    # rate ~ LogNormal(ln r - sigma^2 / 2, sigma), so that its mean is r
    center = math.log(model.mean_loops) - model.loops_sigma**2 / 2
    counts = []
    for group in range(len(model.groups)):
        stream = rng.stream(seed, "loops", iteration, group)
        rate = stream.lognormal(center, model.loops_sigma)
        counts.append(int(stream.poisson(rate)) + 1)  # K ~ Poisson(rate) + 1
    return tuple(counts)


def learning_rate(train: TrainConfig, iteration: int) -> float:
    """Rate of `iteration`, counted from 0: linear warm-up, then the peak, or a cosine to the
    minimum as in nanoGPT.
    """
    peak, lowest = train.learning_rate, train.min_learning_rate
    warmup, end = train.warmup_iterations, train.lr_decay_iterations
    if iteration < warmup:
        return peak * (iteration + 1) / (warmup + 1)  # not 0 at iteration 0
    if end is None:
        return peak
    if iteration >= end:
        return lowest
    done = (iteration - warmup) / (end - warmup)  # share of the decay, 0 … 1
    return lowest + (peak - lowest) * (1 + math.cos(math.pi * done)) / 2


# --- losses


def _default_loss(
    model: LoopedModel,
    tokens: Tensor,
    targets: Tensor,
    loops: Sequence[int],
    noise: Noise,
    train: TrainConfig,
) -> Tensor:
    """The `Loss` of an architecture without its own, see `twoscale.model.registry`."""
    if train.exit_gate is not None:
        return exit_gate_loss(cast(Gated, model), tokens, targets, loops[0], noise, train)
    hidden = model.hidden_states(tokens, loops, noise, train.backprop_depth, train.recompute)
    return model.loss(hidden, targets)


def exit_gate_loss(
    model: Gated, tokens: Tensor, targets: Tensor, loops: int, noise: Noise, train: TrainConfig
) -> Tensor:
    """Mean loss in nats of `tokens` (B, T) against the ids `targets` (B, T) after up to `loops`
    loop steps.

    This is Ouro's first stage (Zhu et al., arXiv 2510.25741). After loop step k the gate reads
    lambda^k from the state of a token, and p^k = lambda^k prod_{j<k} (1 - lambda^j) is the
    probability that the token leaves there; the rest is that of the last loop step. The loss of a
    token is

        sum_k p^k CE^k - beta H(p)

    with CE^k the cross-entropy if all tokens leave with their x^k, decoded through the layers after
    the group, and H the entropy of p in nats, which keeps p from collapsing onto one loop step: a
    uniform prior, up to a constant. Ouro has no layers after its group and a fixed number of loop
    steps; here p is over the loop steps drawn for the iteration. The gradient reaches the gate and,
    through both p and CE, the whole model.
    """
    assert train.exit_gate is not None
    options = (train.backprop_depth, train.recompute)
    states, hidden = model.exit_states(tokens, loops, noise, *options)  # (K, B, T, C)
    log_p = exit_log_probabilities(model.exit_gate_logit(states))  # (K, B, T)
    p = log_p.exp()
    # sum_k p^k CE^k: `loss` is a mean over exits too
    expected = loops * model.loss(hidden, targets.expand(p.shape), p)
    entropy = -(p * log_p).sum(0).mean()  # H(p)
    return expected - train.exit_gate.entropy_weight * entropy


def held_out_loss(
    model: LoopedModel,
    held_out: HeldOut,
    loops: int,
    seed: int,
    batch_size: int,
    precision: str = "float32",
    drawn: DrawnNoise | None = None,
) -> float:
    """Mean cross-entropy in nats per token over held-out sequences at a fixed loop count; `drawn`
    keeps the noise.
    """
    device = next(model.parameters()).device
    counts = [loops] * len(model.config.groups)
    total = 0.0
    with (
        torch.no_grad(),
        autocast(device.type, precision),
        torch.compiler.set_stance("force_eager"),  # rare shapes would trigger recompilation
    ):
        for batch in held_out.batches(batch_size):
            noise = EvaluationNoise.of(model.config, seed, batch.sequences, drawn)
            hidden = model.hidden_states(batch.inputs.to(device), counts, noise)
            loss = model.loss(hidden, batch.targets.to(device)).item()
            # weighted by tokens, because the last batch may be smaller
            total += loss * batch.targets.numel()  # nats
    return total / held_out.targets.numel()


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager:
    """The context of a forward pass in `precision`, float32 or bfloat16, for float32 weights."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")


# --- time


class Timer:
    """Times work from its construction to `stop`; `read` waits for it and for nothing else.

    On CUDA events on the current stream are the clock, and numbers are copied to pinned memory
    after the work.
    """

    def __init__(self, device: str) -> None:
        self._on_cuda = device == "cuda"
        self._started = self._now()

    def stop(self, *numbers: Tensor) -> None:
        """All work has been queued; it results in the tensors () of one dtype."""
        self._numbers = torch.stack(numbers)
        if self._on_cuda:
            pinned = torch.empty(len(numbers), dtype=self._numbers.dtype, pin_memory=True)
            # queued before the event, so the numbers have arrived when `read` has waited for it
            self._numbers = pinned.copy_(self._numbers, non_blocking=True)
        self._stopped = self._now()

    def read(self) -> tuple[list[float], float]:
        """The numbers, and the seconds of the work."""
        if not self._on_cuda:
            return self._numbers.tolist(), self._stopped - self._started
        self._stopped.synchronize()
        # CUDA events give milliseconds
        return self._numbers.tolist(), self._started.elapsed_time(self._stopped) / 1000

    def _now(self) -> Any:  # seconds, or an event on the current stream
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
