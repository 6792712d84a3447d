"""One segment of training, from one checkpoint to the next; the bits do not depend on interruptions."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twoscale.base import InputError, meter
from twoscale.data.batches import HeldOut, open_held_out
from twoscale.data.shards import TokenShard, open_shard
from twoscale.jobs import machine
from twoscale.model import registry
from twoscale.model.flops import exit_gate_flops
from twoscale.model.noise import DrawnNoise
from twoscale.training.metrics_log import Record, SegmentView, monitoring
from twoscale.training.processes import World, connected, destroy_distributed, init_distributed, reshard
from twoscale.training.recipe import ALONE, Recipe, SegmentConfig, held_out_loss
from twoscale.training.state import (
    Segment,
    SegmentPaths,
    TrainingState,
    load_state,
    note_environment,
    save_partial,
    write_segment,
)


@dataclass(frozen=True)
class TrainingData:
    """The token shard to train on (tokens,), and held-out sequences."""

    tokens: np.ndarray
    held_out: HeldOut

    @classmethod
    def open(cls, shard: TokenShard, config: SegmentConfig) -> "TrainingData":
        """The data in the three files of a token shard; raises InputError for a file that is missing or too short."""
        tokens = open_shard(shard.train, shard.metadata, config.model.vocab_size)
        return cls(tokens, open_held_out(shard.val, shard.metadata, config.model, config.train.held_out_sequences))


class Trainer:
    """Runs the iterations of one config; holds what is the same for all of them."""

    def __init__(self, config: SegmentConfig, data: TrainingData, world: World = ALONE) -> None:
        self.model, self.train, self.world = config.model, config.train, world
        self.recipe, self.held_out = Recipe(config, data.tokens, world), data.held_out
        self._held_out_noise = DrawnNoise()
        self.record: Record = lambda row: None  # called with each row of the log
        self._unread: tuple[dict[str, Any], Timer] | None = None  # row and numbers of the last iteration

    def iterate(self, state: TrainingState) -> None:
        """One optimizer update, and its row in the log.

        On CUDA the row comes with the next iteration or with `complete`, so that the host queues an iteration while the
        device computes the one before.
        """
        timer = Timer(self.recipe.device)
        update = self.recipe.update(state.model, state.optimizer, state.iteration)
        state.iteration += 1
        state.tokens_seen += self.train.batch_size * self.model.context_length
        timer.stop(update.loss, update.gradient_norm)
        self.complete(state)  # of the iteration before
        row = {"iteration": state.iteration, "tokens_seen": state.tokens_seen, "learning_rate": update.learning_rate}
        self._unread = row | {"held_out_loss": None, "loops": list(update.loops)}, timer
        if self.recipe.device == "cpu":
            self.complete(state)

    def complete(self, state: TrainingState) -> None:
        """Append the row of the last iteration to the log, if it is not there; waits for the device.

        Raises InputError for numbers that are not finite.
        """
        if self._unread is None:
            return
        (row, timer), self._unread = self._unread, None
        (loss, gradient_norm), seconds = timer.read()
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise InputError(
                f"training: found the loss {loss} and the gradient norm {gradient_norm} at iteration "
                f"{row['iteration']}, expected finite numbers; the last checkpoint is kept (a lower "
                "train.learning_rate may help)."
            )
        state.log.append(row | {"loss": loss, "gradient_norm": gradient_norm} | self._speed(row["loops"], seconds))

    def _speed(self, loops: Sequence[int], seconds: float) -> dict[str, float | None]:
        """Tokens and model FLOPs per second of one iteration, and their share of the GPU's peak."""
        tokens_per_s = self.train.batch_size * self.model.context_length / seconds
        flops = registry.architecture(self.model.architecture).flops(self.model, loops, self.train.backprop_depth)
        if self.train.exit_gate is not None:
            flops += exit_gate_flops(self.model, loops[0])
        tflops, peak = tokens_per_s * flops.total / 1e12, self.train.peak_tflops
        utilisation = tflops / (peak * self.world.size) if peak else None
        return {"tokens_per_s": tokens_per_s, "tflops": tflops, "utilisation": utilisation}

    def measure_held_out(self, state: TrainingState) -> None:
        """Write the held-out loss at the fixed loop count into the row of the last iteration.

        The main process measures it; the others wait at their next average. With train.shard all measure it, because
        no process has the whole model.
        """
        self.complete(state)
        if not self.world.is_main and not state.sharded:
            return
        seed, precision, drawn = self.recipe.seed, self.recipe.precision, self._held_out_noise
        state.log[-1]["held_out_loss"] = held_out_loss(
            state.model, self.held_out, self.train.held_out_loops, seed, self.train.batch_size, precision, drawn
        )
        if state.sharded:
            reshard(state.model)


class Timer:
    """Times work from its construction to `stop`; `read` waits for it and for nothing else.

    On CUDA events on the current stream are the clock, and numbers are copied to pinned memory after the work.
    """

    def __init__(self, device: str) -> None:
        self._on_cuda = device == "cuda"
        self._started = self._now()

    def stop(self, *numbers: Tensor) -> None:
        """All work has been queued; it results in the tensors () of one dtype."""
        self._numbers = torch.stack(numbers)
        if self._on_cuda:
            pinned = torch.empty(len(numbers), dtype=self._numbers.dtype, pin_memory=True)
            self._numbers = pinned.copy_(self._numbers, non_blocking=True)
        self._stopped = self._now()

    def read(self) -> tuple[list[float], float]:
        """The numbers, and the seconds that the work took."""
        if not self._on_cuda:
            return self._numbers.tolist(), self._stopped - self._started
        self._stopped.synchronize()
        return self._numbers.tolist(), self._started.elapsed_time(self._stopped) / 1000

    def _now(self) -> Any:  # seconds, or an event on the current stream
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def train_segment(config: SegmentConfig, data: TrainingData, segment: Segment, paths: SegmentPaths) -> None:
    """Train from the latest saved state of the segment, and write its outputs.

    The outputs are the log, the optimizer state and the weights; the partial state is removed last.
    """
    with connected(config.train.processes):
        world = init_distributed(config.device, config.train.processes)
        state = load_state(config, segment, paths)
        check_same_start(world, paths.partial, state.iteration)
        now = machine.environment(config.device, world.size, config.train.nodes, config.train.shard)
        note_environment(state, paths.previous_log, now, world.is_main)
        trainer = Trainer(config, data, world)
        view = SegmentView(segment.run, segment.until, state.iteration, tuple(state.log), paths.log.parent)
        with monitoring(config, view, visible=world.is_main) as trainer.record:
            partial_identity = segment.unfinished(paths.start[0]).identity
            run_segment(trainer, state, segment.until, paths.partial, partial_identity)
        if world.is_main or state.sharded:
            write_segment(state, paths, segment.identity, world.is_main)
        destroy_distributed(world)


def check_same_start(world: World, partial: Path, iteration: int) -> None:
    """Refuse to train if the processes have read different states, on nodes that do not see the same files."""
    found = sorted(set(world.gather_number(iteration)))
    if len(found) > 1:
        raise InputError(
            f"{partial}: found states after iterations {', '.join(map(str, found))} on the nodes, expected the same "
            "state on all nodes; start the job again once all nodes see the same file."
        )


def run_segment(trainer: Trainer, state: TrainingState, until: int, partial: Path, identity: dict[str, Any]) -> None:
    """Iterate up to iteration `until`; every train.save_seconds the state is saved to the file `partial`.

    With train.shard all processes take part in a save, when the main one decides on it.
    """
    train, start, is_main = trainer.train, state.iteration - len(state.log), trainer.world.is_main
    saved = time.monotonic()
    label, shown = f"train {start} -> {until}", len(state.log)
    with meter(label, until - start, "it", initial=shown, visible=is_main) as bar:
        while state.iteration < until:
            trainer.iterate(state)
            if state.iteration % train.held_out_every == 0 or state.iteration == until:
                trainer.measure_held_out(state)
            saves = time.monotonic() - saved >= train.save_seconds and state.iteration < until
            if state.sharded:
                saves = bool(trainer.world.gather_number(saves)[0])
            if saves:  # nothing that is not finite is saved
                trainer.complete(state)
            for row in state.log[shown:]:  # on CUDA a row comes one iteration late
                bar.set_postfix_str(f"loss {row['loss']:.3f}, {row['tokens_per_s']:.0f} tokens/s", refresh=False)
                bar.update(1)
                trainer.record(row)
            shown = len(state.log)
            if saves and (is_main or state.sharded):
                save_partial(partial, state, identity, is_main)
                saved = time.monotonic()
