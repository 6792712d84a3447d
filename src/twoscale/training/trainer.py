"""One segment of training, from one checkpoint to the next; the bits do not depend on interruptions.

The recipe is nanoGPT's (App. B): AdamW, decay on matrices, clipping, warm-up and cosine. Everything random
is a function of (seed, iteration, purpose), so a segment needs no state but weights and moments.
"""

import contextlib
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from twoscale import progress, rng, tables
from twoscale.canonical import canonical_json
from twoscale.config import ModelConfig, TrainConfig
from twoscale.data.batches import Batches, HeldOut, Prefetched, open_held_out
from twoscale.data.token_files import TokenShard, open_shard
from twoscale.errors import InputError
from twoscale.jobs import environment
from twoscale.json import Count, checked
from twoscale.model import checkpoints, registry
from twoscale.model.checkpoints import Header
from twoscale.model.flops import exit_gate_flops
from twoscale.model.interface import LoopedModel, Noise
from twoscale.model.linear import lowered_weights
from twoscale.model.noise import DrawnNoise, EvaluationNoise, training_noise
from twoscale.model.tensors import check_tensors
from twoscale.training import sharding
from twoscale.training.compilation import check_compiler, compile_blocks
from twoscale.training.exit_gate import exit_gate_loss
from twoscale.training.metrics_log import Record, SegmentView, check_tracker, ignore, monitoring
from twoscale.training.processes import World, connected, destroy_distributed, init_distributed
from twoscale.training.timer import Timer

ADAM_EPSILON = 1e-8
ALONE = World()
MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter
PARTS = ("weights/", "optimizer/")  # what the names of tensors in a partial state begin with


class SegmentConfig(Protocol):
    """What a segment needs of the config: a slice with `model`, `train`, `seed` and `device`."""

    seed: int
    device: str
    model: ModelConfig
    train: TrainConfig


@dataclass(frozen=True)
class SegmentPaths:
    """Files of one segment; `start` is the weights and, after iteration 0, the optimizer state to start from."""

    start: Sequence[Path]
    partial: Path
    checkpoint: Path
    optimizer: Path
    log: Path
    loops: Path

    @property
    def previous_log(self) -> Path:
        """The log of the segment before, beside the one of this segment."""
        return self.log.with_name(self.start[0].with_suffix(self.log.suffix).name)


@dataclass
class TrainingState:
    """The state of a run: model, optimizer, finished iterations, and the log of the segment so far.

    A row of the log is a row of the table "training" and, under "loops", the loop counts of the groups. The
    environments are those in which the segment was trained so far, see `twoscale.jobs.environment`. If `sharded`,
    model and optimizer are divided over the processes, see `twoscale.training.sharding`.
    """

    model: LoopedModel
    optimizer: torch.optim.AdamW
    iteration: int
    tokens_seen: int
    log: list[dict[str, Any]] = field(default_factory=list)
    environments: list[environment.Environment] = field(default_factory=list)
    sharded: bool = False


def draw_loops(model: ModelConfig, seed: int, iteration: int) -> tuple[int, ...]:
    """Loop counts of `iteration`, one per group (log-normal Poisson of Geiping et al., App. B).

    rate ~ LogNormal(ln r - sigma^2 / 2, sigma), so that its mean is r; K ~ Poisson(rate) + 1. One draw per
    group and iteration, shared by all micro-batches and processes; a group of several layers has one.
    """
    center = math.log(model.mean_loops) - model.loops_sigma**2 / 2
    counts = []
    for group in range(len(model.groups)):
        stream = rng.stream(seed, "loops", iteration, group)
        counts.append(int(stream.poisson(stream.lognormal(center, model.loops_sigma))) + 1)
    return tuple(counts)


def learning_rate(train: TrainConfig, iteration: int) -> float:
    """Rate of `iteration`, counted from 0: linear warm-up, then a cosine to the minimum, as in nanoGPT.

    With lr_decay_iterations null it stays at its peak after the warm-up (Geiping et al.).
    """
    if iteration < train.warmup_iterations:
        return train.learning_rate * (iteration + 1) / (train.warmup_iterations + 1)
    if train.lr_decay_iterations is None:
        return train.learning_rate
    if iteration >= train.lr_decay_iterations:
        return train.min_learning_rate
    done = (iteration - train.warmup_iterations) / (train.lr_decay_iterations - train.warmup_iterations)
    return (
        train.min_learning_rate + (train.learning_rate - train.min_learning_rate) * (1 + math.cos(math.pi * done)) / 2
    )


def make_optimizer(model: LoopedModel, train: TrainConfig) -> torch.optim.AdamW:
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
        fused=True,
    )


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
    """Mean cross-entropy in nats per token over held-out sequences at a fixed loop count.

    Always eager: rare evaluation shapes would trigger recompilation. `drawn` keeps the noise for the next measurement.
    """
    device = next(model.parameters()).device
    total = 0.0
    with torch.no_grad(), autocast(device.type, precision), torch.compiler.set_stance("force_eager"):
        for batch in held_out.batches(batch_size):
            noise = EvaluationNoise.of(model.config, seed, batch.sequences, drawn)
            hidden = model.hidden_states(batch.inputs.to(device), [loops] * len(model.config.groups), noise)
            total += model.loss(hidden, batch.targets.to(device)).item() * batch.targets.numel()
    return total / held_out.targets.numel()


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


@dataclass(frozen=True)
class Segment:
    """Iterations up to `until`, of the run with this identity; at `stop_at` (seconds of time.monotonic) it pauses.

    `run` is its name in messages, `version` that of the code and config as in `twoscale.jobs.kept`.
    """

    until: int
    identity: dict[str, Any]
    stop_at: float = math.inf
    run: str = "train"
    version: str = ""

    def unfinished(self, start: Path) -> "Segment":
        """The segment with the identity of its partial states, which are bound to code and start as well."""
        return replace(self, identity=self.identity | {"code": self.version, "start": checkpoints.digest(start)})


class Trainer:
    """Runs the iterations of one config; holds what is the same for all of them."""

    def __init__(
        self, config: SegmentConfig, data: TrainingData, world: World = ALONE, stop_at: float = math.inf
    ) -> None:
        self.seed, self.device, self.model, self.train = config.seed, config.device, config.model, config.train
        self.precision = config.train.precision_on(config.device)
        self.world, self.stop_at = world, stop_at
        batches = Batches(data.tokens, self.model.context_length, self.train.batch_size, self.train.order, self.seed)
        self.batches = Prefetched(batches, pins=self.device == "cuda") if self.train.prefetch else batches
        self.held_out, self._held_out_noise = data.held_out, DrawnNoise()
        self.record: Record = ignore  # called with each row of the log
        self._unread: tuple[dict[str, Any], Timer] | None = None  # row and numbers of the last iteration

    def iterate(self, state: TrainingState) -> None:
        """One optimizer update, and its row in the log.

        On CUDA the row comes with the next iteration or with `complete`, so that the host queues an iteration while the
        device computes the one before.
        """
        timer = Timer(self.device)
        loops = draw_loops(self.model, self.seed, state.iteration)
        rate = learning_rate(self.train, state.iteration)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        loss = self._accumulate_gradient(state, loops)
        gradient_norm = self._clip_gradient(state)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        state.iteration += 1
        state.tokens_seen += self.train.batch_size * self.model.context_length
        timer.stop(loss, gradient_norm)
        self.complete(state)
        row = {"iteration": state.iteration, "tokens_seen": state.tokens_seen, "learning_rate": rate}
        self._unread = row | {"held_out_loss": None, "loops": list(loops)}, timer
        if self.device == "cpu":
            self.complete(state)

    def complete(self, state: TrainingState) -> None:
        """Append the row of the last iteration to the log, if it is not there; waits for the device.

        Raises InputError for numbers that are not finite.
        """
        if self._unread is None:
            return
        (row, timer), self._unread = self._unread, None
        (loss, gradient_norm), seconds = timer.read()
        self._check_finite(row["iteration"], loss, gradient_norm)
        state.log.append(row | {"loss": loss, "gradient_norm": gradient_norm} | self._speed(row["loops"], seconds))

    def _clip_gradient(self, state: TrainingState) -> Tensor:
        """Limit the norm of the gradient to train.grad_clip; the norm before, ()."""
        norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), self.train.grad_clip)
        return norm.full_tensor() if state.sharded else norm

    @staticmethod
    def _check_finite(iteration: int, loss: float, gradient_norm: float) -> None:
        if not math.isfinite(loss) or not math.isfinite(gradient_norm):
            raise InputError(
                f"training: iteration {iteration} gave the loss {loss} and the gradient norm {gradient_norm}, expected "
                "finite numbers; the last checkpoint is kept (a lower train.learning_rate may help)."
            )

    def _speed(self, loops: Sequence[int], seconds: float) -> dict[str, float | None]:
        """Tokens and model FLOPs per second of one iteration, and their share of the GPU's peak."""
        tokens_per_s = self.train.batch_size * self.model.context_length / seconds
        flops = registry.architecture(self.model.architecture).flops(self.model, loops, self.train.backprop_depth)
        if self.train.exit_gate is not None:
            flops += exit_gate_flops(self.model, loops[0])
        tflops = tokens_per_s * flops.total / 1e12
        peak = self.train.peak_tflops
        utilisation = tflops / (peak * self.world.size) if peak else None
        return {"tokens_per_s": tokens_per_s, "tflops": tflops, "utilisation": utilisation}

    def _accumulate_gradient(self, state: TrainingState, loops: Sequence[int]) -> Tensor:
        """Mean loss () of the batch of the next iteration; its gradient is left in the parameters.

        The batch is split into micro-batches, and each of them over the processes. Each part is weighted by its
        share of the samples. Noise is a function of the number of a sample in the batch, so the split changes
        nothing but the order of sums.
        """
        inputs, targets = (part.to(self.device, non_blocking=True) for part in self.batches[state.iteration])
        loss = torch.zeros((), device=self.device)
        # of a divided model autocast lowers the weights, once they are gathered
        lowered = state.model.blocks if self.precision == "bfloat16" and not state.sharded else ()
        with lowered_weights(lowered, torch.bfloat16):
            for rows in self.world.parts(self.train.batch_size, self.train.micro_batches):
                if rows.start < rows.stop:
                    loss += self._add_gradient(state, inputs[rows], targets[rows], rows.start, loops)
        if state.sharded:  # the gradients are averaged
            sharding.reshard(state.model)
            self.world.average([loss])
        else:
            # every process has a sample in the first micro-batch, so all have the same gradients
            self.world.average([loss, *(p.grad for p in state.model.parameters() if p.grad is not None)])
        return loss

    def _add_gradient(
        self, state: TrainingState, inputs: Tensor, targets: Tensor, first: int, loops: Sequence[int]
    ) -> Tensor:
        """Add the gradient of a part (B, T) of the batch that begins with sample `first`; its share of the loss, ()."""
        # 1 / parts times the share 1 / size of a process in the average is the part's share of the batch
        parts = self.train.batch_size / (len(inputs) * self.world.size)
        noise = training_noise(self.seed, state.iteration, first, self.model.state_std)
        with autocast(self.device, self.precision):
            loss = self._loss(state.model, inputs, targets, loops, noise)
        (loss / parts).backward()
        return loss.detach() / parts

    def _loss(self, model: LoopedModel, inputs: Tensor, targets: Tensor, loops: Sequence[int], noise: Noise) -> Tensor:
        """What is minimised, of a part (B, T) of the batch."""
        train = self.train
        if train.exit_gate is not None:
            return exit_gate_loss(model, inputs, targets, loops[0], noise, train)
        return model.loss(model.hidden_states(inputs, loops, noise, train.backprop_depth, train.recompute), targets)

    def measure_held_out(self, state: TrainingState) -> None:
        """Write the held-out loss at the fixed loop count into the row of the last iteration.

        The main process measures it; the others wait at their next average. With train.shard all measure it, because
        no process has the whole model.
        """
        self.complete(state)
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
            sharding.reshard(state.model)


def train_segment(config: SegmentConfig, data: TrainingData, segment: Segment, paths: SegmentPaths) -> int:
    """Train from the latest saved state of the segment, and write its outputs; the iteration that was reached.

    The outputs are the log, the optimizer state and the weights; the partial state is removed last. A segment that
    pauses before its end leaves only the partial state.
    """
    check_tracker(config.train)
    with connected(config.train.processes):
        world = init_distributed(config.device, config.train.processes)
        iteration = _train_segment(config, data, segment, paths, world)
        destroy_distributed(world)
    return iteration


def _train_segment(
    config: SegmentConfig, data: TrainingData, segment: Segment, paths: SegmentPaths, world: World
) -> int:
    until, identity = segment.until, segment.identity
    state = load_state(config, segment, paths)
    check_same_start(world, paths.partial, state.iteration)
    now = environment.current(config.device, world.size, config.train.nodes, config.train.shard)
    note_environment(state, paths.previous_log, now, world.is_main)
    trainer = Trainer(config, data, world, segment.stop_at)
    view = SegmentView(segment.run, until, state.iteration, tuple(state.log), paths.log.parent)
    with monitoring(config, view, visible=world.is_main) as trainer.record:
        run_segment(trainer, state, until, paths.partial, segment.unfinished(paths.start[0]).identity)
    if state.iteration == until and (world.is_main or state.sharded):
        write_segment(state, paths, identity, world.is_main)
    return state.iteration


def load_state(config: SegmentConfig, segment: Segment, paths: SegmentPaths) -> TrainingState:
    """The state to train from: the partial state of the segment if there is one, otherwise that of its start.

    What is loaded is released on return: with train.shard it is the whole model in the memory of the CPU.
    """
    start = checkpoints.read_header(paths.start[0]).iteration
    if (partial := load_partial(paths.partial, start, segment.unfinished(paths.start[0]), config)) is not None:
        return restore(config, *partial)
    weights, header = checkpoints.load_weights(paths.start[0], segment.identity, config.model, _loads_on(config))
    moments = load_moments(paths.start[1], segment.identity, config, header.iteration) if header.iteration else {}
    return restore(config, weights, moments, header)


def _loads_on(config: SegmentConfig) -> str:
    """Where tensors are loaded: a model that is divided need not fit a GPU."""
    if config.train.shard or config.device == "cpu":
        return "cpu"
    # safetensors takes "cuda" for the first GPU, whichever one the process uses
    return f"cuda:{torch.cuda.current_device()}"


def check_same_start(world: World, partial: Path, iteration: int) -> None:
    """Refuse to train where the processes have read different states, on nodes that do not see the same files."""
    found = sorted(set(world.gather_number(iteration)))
    if len(found) > 1:
        raise InputError(
            f"{partial}: found states after iterations {', '.join(map(str, found))} on the nodes, expected the same "
            "file on all of them; start the job again once the shared file system shows it."
        )


def note_environment(state: TrainingState, previous_log: Path, now: environment.Environment, visible: bool) -> None:
    """Record the environment in which the state is trained on, and say where it is another one than before."""
    before = state.environments or environment.read(previous_log)
    if visible and before and (warning := environment.warning(before[-1], now)) is not None:
        print(warning, file=sys.stderr)
    state.environments = environment.extended(state.environments, state.iteration + 1, now)


def load_moments(path: Path, identity: dict[str, Any], config: SegmentConfig, iteration: int) -> dict[str, Tensor]:
    """AdamW's moments after `iteration`; an empty file, which stands for those of a restored segment, is refused."""
    if path.is_file() and not path.stat().st_size:
        raise InputError(
            f"{path}: found an empty file, which stands for the optimizer state of a restored segment, expected a "
            "later segment that can be restored too; remove the folder .kept/checkpoints of the run and train with "
            "`snakemake --forcerun init_model`."
        )
    moments, header = checkpoints.load(path, "optimizer", identity, _loads_on(config))
    if header.iteration != iteration:
        raise InputError(f"{path}: found the optimizer state of iteration {header.iteration}, expected {iteration}.")
    check_moments(path, moments, set_trained(checkpoints.blank(config.model), config.train))
    return moments


def check_moments(path: Path, moments: Mapping[str, Tensor], model: LoopedModel) -> None:
    """Refuse moments of other parameters than those of the model, and values that no moment has."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    check_tensors(path, moments, {f"{name}.{moment}": parameter for name, parameter in trained for moment in MOMENTS})
    for name, tensor in moments.items():
        if name.endswith(MOMENTS[1]) and tensor.min() < 0:
            raise InputError(f"{path}: tensor {name}: found a mean square below 0, expected at least 0.")


def write_segment(state: TrainingState, paths: SegmentPaths, identity: dict[str, Any], is_main: bool = True) -> None:
    """Write the outputs of a segment; with train.shard all processes call this, and the main one writes."""
    weights, moments = tensors_of(state)
    if not is_main:
        return
    write_log(state, paths.log, paths.loops)
    for path, kind, tensors in ((paths.optimizer, "optimizer", moments), (paths.checkpoint, "weights", weights)):
        checkpoints.save(path, tensors, Header(kind, state.iteration, state.tokens_seen, identity, {}))
    paths.partial.unlink(missing_ok=True)


def run_segment(trainer: Trainer, state: TrainingState, until: int, partial: Path, identity: dict[str, Any]) -> None:
    """Iterate up to iteration `until`; every train.save_seconds the state is saved to the file `partial`.

    It is also saved when the trainer has to stop, which only a single process can do. With train.shard all processes
    take part in a save, when the main one decides on it.
    """
    train, start, is_main = trainer.train, state.iteration - len(state.log), trainer.world.is_main
    saved = time.monotonic()
    label, shown = f"train {start} -> {until}", len(state.log)
    with progress.meter(label, until - start, "it", initial=shown, visible=is_main) as bar:
        while state.iteration < until:
            trainer.iterate(state)
            if state.iteration % train.held_out_every == 0 or state.iteration == until:
                trainer.measure_held_out(state)
            now = time.monotonic()
            stops = now >= trainer.stop_at
            saves = (stops or now - saved >= train.save_seconds) and state.iteration < until
            if state.sharded:
                saves = bool(trainer.world.gather_number(saves)[0])
            if saves:
                trainer.complete(state)
            for row in state.log[shown:]:
                bar.set_postfix_str(f"loss {row['loss']:.3f}, {row['tokens_per_s']:.0f} tokens/s", refresh=False)
                bar.update(1)
                trainer.record(row)
            shown = len(state.log)
            if saves and (is_main or state.sharded):
                save_partial(partial, state, identity, is_main)
                saved = time.monotonic()
            if stops:
                return


def tensors_of(state: TrainingState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and AdamW's moments under the names of their parameters.

    With train.shard all processes must call this, and those besides the main one get none.
    """
    moments = {
        f"{name}.{moment}": state.optimizer.state[parameter][moment]
        for name, parameter in state.model.named_parameters()
        if parameter in state.optimizer.state
        for moment in MOMENTS
    }
    weights = dict(state.model.state_dict())
    return (sharding.gather(weights), sharding.gather(moments)) if state.sharded else (weights, moments)


def write_log(state: TrainingState, path: Path, loops_path: Path) -> None:
    """Write the log of a segment as the tables "training" and "training_loops", the first with the environments."""
    log, groups = state.log, state.model.config.group_labels
    with tables.writing("training", path, metadata={environment.KEY: canonical_json(state.environments)}) as append:
        append({name: [row[name] for row in log] for name in tables.columns("training")})
    rows = [(row["iteration"], group, count) for row in log for group, count in zip(groups, row["loops"], strict=True)]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    with tables.writing("training_loops", loops_path) as append:
        append(dict(zip(tables.columns("training_loops"), columns, strict=True)))


def restore(
    config: SegmentConfig, weights: dict[str, Tensor], moments: dict[str, Tensor], header: Header
) -> TrainingState:
    """The state that the tensors were saved from; without moments, the start of training.

    With train.shard all processes call this, and each keeps its part.
    """
    sharded = config.train.shard
    model = set_trained(registry.build(config.model).to(_loads_on(config)), config.train)
    model.load_state_dict(weights)
    if config.train.compiles(config.device):
        check_compiler(config.device)
        compile_blocks(model, sharded)
    if sharded:
        sharding.shard_model(model, config.device)
    optimizer = make_optimizer(model, config.train)
    if moments:
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            updates = torch.tensor(float(header.iteration), device=parameter.device)
            parts = {m: moments[f"{name}.{m}"].to(parameter.device) for m in MOMENTS}
            if sharded:
                parts = {m: sharding.shard_like(whole, parameter) for m, whole in parts.items()}
            optimizer.state[parameter] = {"step": updates} | parts
    log, environments = list(header.extra.get("log", ())), environment.valid(header.extra.get("environments"))
    return TrainingState(model, optimizer, header.iteration, header.tokens_seen, log, environments, sharded)


def set_trained(model: LoopedModel, train: TrainConfig) -> LoopedModel:
    """The model, with a gradient of its exit gate if that is trained."""
    if model.gate is not None:
        model.gate.requires_grad_(train.exit_gate is not None)
    return model


def save_partial(path: Path, state: TrainingState, identity: dict[str, Any], is_main: bool = True) -> None:
    """All of an unfinished segment in one file, replaced atomically.

    With train.shard all processes call this, and the main one writes.
    """
    weights, moments = tensors_of(state)
    if not is_main:
        return
    parts = zip(PARTS, (weights, moments), strict=True)
    tensors = {f"{prefix}{name}": tensor for prefix, part in parts for name, tensor in part.items()}
    extra = {"log": state.log, "environments": state.environments}
    header = Header("partial", state.iteration, state.tokens_seen, identity, extra)
    checkpoints.save(path, tensors, header)


def load_partial(
    path: Path, start: int, segment: Segment, config: SegmentConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor], Header] | None:
    """Weights, moments and header that an interrupted attempt at this segment saved; None if there are none.

    A file of another segment or config, or one that cannot be read, is ignored.
    """
    if not path.exists():
        return None
    try:
        tensors, header = checkpoints.load(path, "partial", segment.identity, _loads_on(config))
        weights, moments = ({n.removeprefix(p): t for n, t in tensors.items() if n.startswith(p)} for p in PARTS)
        model = checkpoints.blank(config.model)
        check_tensors(path, weights, model.state_dict())
        check_moments(path, moments, set_trained(model, config.train))
        log = _log(path, header, len(config.model.groups))
    except InputError as error:
        print(f"restarting the segment: {error}", file=sys.stderr)
        return None
    if not start < header.iteration < segment.until or len(log) != header.iteration - start:
        return None
    return weights, moments, header


def _log(path: Path, header: Header, groups: int) -> list[dict[str, Any]]:
    """The rows of the log in the header of a partial state, as `TrainingState` has them."""
    try:
        rows = checked(header.extra.get("log"), list[dict[str, int | float | list[Count] | None]])
    except ValueError as error:
        raise InputError(f"{path}: found no log of the segment ({error}), expected one row per iteration.") from error
    columns = {*tables.columns("training"), "loops"}
    for number, row in enumerate(rows, start=header.iteration - len(rows) + 1):
        values = [value for name, value in row.items() if name not in ("iteration", "loops", "tokens_seen")]
        if (
            row.keys() != columns
            or row["iteration"] != number
            or not isinstance(row["tokens_seen"], int)
            or not isinstance(row["loops"], list)
            or len(row["loops"]) != groups
            or any(isinstance(value, list) for value in values)
        ):
            raise InputError(f"{path}: found no row of the log for iteration {number}, expected one.")
    return rows
