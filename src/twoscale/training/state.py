"""The state of a segment of training: its files, and how it is loaded, checked and saved."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from twoscale import tables
from twoscale.base import InputError, canonical_json
from twoscale.config import ModelConfig, TrainConfig
from twoscale.jobs import machine
from twoscale.model import checkpoints, registry
from twoscale.model.checkpoints import Header, check_tensors
from twoscale.model.interface import Gated, LoopedModel
from twoscale.training.processes import gather, shard_like, shard_model

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class SegmentConfig(Protocol):
    """The config of a segment: a slice with `model`, `train`, `seed` and `device`."""

    seed: int
    device: str
    model: ModelConfig
    train: TrainConfig


# --- compilation

# a step before the gradient, the first one with it, and those whose state has one too
_GRAPHS_PER_GROUP = 3
# of the parts of a batch, which differ by one sequence where it is not divided evenly
_BATCH_SIZES = 2


def _check_compiler() -> None:
    """Refuse to compile on CPU without a C++ compiler."""
    # imported here: it takes a second, and few runs compile on CPU
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise InputError(
            "config key train.compile: found no C++ compiler (the variable CXX, otherwise g++),"
            " expected one, or false, on CPU."
        ) from error


def compile_blocks(model: LoopedModel, sharded: bool = False, **options: Any) -> None:
    """Compile each group's loop step and each unlooped layer, once whatever the loop counts.

    `options` are for torch.compile. Of a model that will be divided only `forward` is compiled,
    without the hooks that gather weights and would break the graph.
    """
    limit = _GRAPHS_PER_GROUP * _BATCH_SIZES * max(1, len(model.config.groups))
    # Beyond its limit torch would silently run the rest uncompiled. It is set for the whole
    # process, because not every version of torch.compile has the option.
    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
    options |= {"dynamic": False}
    for module in model.blocks:
        if sharded:
            module.forward = torch.compile(module.forward, **options)
        else:
            module.compile(**options)


# --- a segment and its state

_ADAM_EPSILON = 1e-8
_MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter
# what the names of tensors in a partial state begin with
_WEIGHTS, _OPTIMIZER = "weights/", "optimizer/"


@dataclass(frozen=True)
class SegmentPaths:
    """Files of one segment.

    start: the weights and, after iteration 0, the optimizer state to start from.
    """

    start: Sequence[Path]
    partial: Path
    checkpoint: Path
    optimizer: Path
    log: Path
    loops: Path

    @property
    def previous_log(self) -> Path:
        """The log of the segment before, in the folder of this segment's."""
        # files of a segment have the iteration at its end in their names
        return self.log.with_name(self.start[0].with_suffix(self.log.suffix).name)


@dataclass(frozen=True)
class Segment:
    """Iterations up to `until`, of the run with this identity.

    `run` is its name in messages, `code` the fingerprint of the code.
    """

    until: int
    identity: dict[str, Any]
    run: str = "train"
    code: str = ""

    def partial_identity(self, start: Path) -> dict[str, Any]:
        """The identity of its partial states, which are bound to code and start as well."""
        return self.identity | {"code": self.code, "start": checkpoints.digest(start)}


@dataclass
class TrainingState:
    """The state of a run: model, optimizer, finished iterations, and the log of the segment so far.

    A row of the log is a row of the table "training" and, under "loops", the loop counts of the
    groups. The environments are those in which the segment was trained so far, see
    `twoscale.jobs.machine`. If `sharded`, model and optimizer are divided over the processes, see
    `twoscale.training.processes`.
    """

    model: LoopedModel
    optimizer: torch.optim.AdamW
    iteration: int
    tokens_seen: int
    log: list[dict[str, Any]] = field(default_factory=list)
    environments: list[machine.Environment] = field(default_factory=list)
    sharded: bool = False


# --- loading


def load_state(config: SegmentConfig, segment: Segment, paths: SegmentPaths) -> TrainingState:
    """The state to train from: the partial state of the segment if there is one, otherwise the
    state of its start.
    """
    start = paths.start[0]
    first = checkpoints.read_header(start).iteration
    identity = segment.partial_identity(start)
    partial = load_partial(paths.partial, first, segment.until, identity, config)
    if partial is not None:
        return restore(config, *partial)
    identity, device = segment.identity, _loads_on(config)
    weights, header = checkpoints.load_weights(start, identity, config.model, device)
    moments = {}  # none at the start of training
    if header.iteration:
        moments = load_moments(paths.start[1], identity, config, header.iteration)
    return restore(config, weights, moments, header)


def load_partial(
    path: Path, first: int, until: int, identity: dict[str, Any], config: SegmentConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor], Header] | None:
    """Weights, moments and header that an interrupted attempt at the segment saved; None if there
    are none.

    The segment has the iterations after `first` up to `until`. A file of another segment or config,
    or one that cannot be read, is ignored.
    """
    if not path.exists():
        return None
    try:
        tensors, header = checkpoints.load(path, "partial", identity, _loads_on(config))
        weights = _without_prefix(tensors, _WEIGHTS)
        moments = _without_prefix(tensors, _OPTIMIZER)
        model = checkpoints.blank(config.model)
        check_tensors(path, weights, model.state_dict())
        _check_moments(path, moments, set_trained(model, config.train))
    except InputError as error:
        print(f"restarting the segment: {error}", file=sys.stderr)
        return None
    # the log of the segment needs a row for each of its iterations
    has_log = len(header.extra["log"]) == header.iteration - first
    return (weights, moments, header) if first < header.iteration < until and has_log else None


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def load_moments(
    path: Path, identity: dict[str, Any], config: SegmentConfig, iteration: int
) -> dict[str, Tensor]:
    """AdamW's moments after `iteration`."""
    moments, header = checkpoints.load(path, "optimizer", identity, _loads_on(config))
    if header.iteration != iteration:
        raise InputError(
            f"{path}: found the optimizer state of iteration {header.iteration}, expected"
            f" {iteration}."
        )
    _check_moments(path, moments, set_trained(checkpoints.blank(config.model), config.train))
    return moments


def _check_moments(path: Path, moments: Mapping[str, Tensor], model: LoopedModel) -> None:
    """Refuse moments that are not those of the trained parameters of a model."""
    expected: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            expected |= {f"{name}.{moment}": parameter for moment in _MOMENTS}
    check_tensors(path, moments, expected)


def _loads_on(config: SegmentConfig) -> str:
    """Where tensors are loaded: a model that is divided need not fit a GPU."""
    if config.train.shard or config.device == "cpu":
        return "cpu"
    # safetensors takes "cuda" for the first GPU, whichever one the process uses
    return f"cuda:{torch.cuda.current_device()}"


def restore(
    config: SegmentConfig, weights: dict[str, Tensor], moments: dict[str, Tensor], header: Header
) -> TrainingState:
    """The state that the tensors were saved from; without moments, the start of training."""
    sharded = config.train.shard
    model = set_trained(registry.build(config.model).to(_loads_on(config)), config.train)
    model.load_state_dict(weights)
    if config.train.compiles(config.device):
        if config.device == "cpu":
            _check_compiler()
        compile_blocks(model, sharded)
    if sharded:
        shard_model(model, config.device)
    # only now: `fully_shard` has replaced the parameters
    optimizer = make_optimizer(model, config.train)
    for name, parameter in model.named_parameters():
        if not moments or not parameter.requires_grad:
            continue
        # AdamW's count, by which it corrects the bias of the moments
        updates = torch.tensor(float(header.iteration), device=parameter.device)
        optimizer.state[parameter] = {"step": updates}
        for moment in _MOMENTS:
            value = moments[f"{name}.{moment}"].to(parameter.device)
            if sharded:
                value = shard_like(value, cast("DTensor", parameter))
            optimizer.state[parameter][moment] = value
    return TrainingState(
        model,
        optimizer,
        header.iteration,
        header.tokens_seen,
        log=list(header.extra.get("log", ())),
        environments=list(header.extra.get("environments", ())),
        sharded=sharded,
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
        eps=_ADAM_EPSILON,
        fused=True,
    )


def set_trained(model: LoopedModel, train: TrainConfig) -> LoopedModel:
    """The model, with a gradient of its exit gate if that is trained."""
    if train.exit_gate is not None:
        gate = cast(Gated, model).gate
        assert gate is not None
        gate.requires_grad_(True)
    return model


def note_environment(
    state: TrainingState, previous_log: Path, now: machine.Environment, visible: bool
) -> None:
    """Record the environment in which training continues, and report a change."""
    # of this segment if an attempt was interrupted, otherwise of the one before
    before = state.environments or machine.recorded_environments(previous_log)
    changes = machine.differences(before[-1], now) if before else []
    if changes and visible:
        print(
            f"warning: training continues in another environment ({'; '.join(changes)}), so the"
            " weights may not be bit-identical to those of an uninterrupted run",
            file=sys.stderr,
        )
    if changes or not state.environments:
        state.environments = [*state.environments, {machine.FIRST: state.iteration + 1, **now}]


# --- saving


def tensors_of(state: TrainingState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and AdamW's moments under the names of their parameters; of a divided model for the
    main process.
    """
    weights = dict(state.model.state_dict())
    moments: dict[str, Tensor] = {}
    for name, parameter in state.model.named_parameters():
        if parameter in state.optimizer.state:
            values = state.optimizer.state[parameter]
            moments |= {f"{name}.{moment}": values[moment] for moment in _MOMENTS}
    return (gather(weights), gather(moments)) if state.sharded else (weights, moments)


def save_partial(
    path: Path, state: TrainingState, identity: dict[str, Any], is_main: bool = True
) -> None:
    """Write all of an unfinished segment to one file. All processes call this, and the main one
    writes.
    """
    # before the others return: a divided model is gathered by all processes together
    weights, moments = tensors_of(state)
    if not is_main:
        return
    tensors = {f"{_WEIGHTS}{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"{_OPTIMIZER}{name}": tensor for name, tensor in moments.items()}
    extra = {"log": state.log, "environments": state.environments}
    header = Header("partial", state.iteration, state.tokens_seen, identity, extra)
    checkpoints.save(path, tensors, header)


def write_segment(
    state: TrainingState, paths: SegmentPaths, identity: dict[str, Any], is_main: bool
) -> None:
    """Write the outputs of a segment. All processes call this, and the main one writes."""
    weights, moments = tensors_of(state)
    if not is_main:
        return
    _write_log(state, paths.log, paths.loops)
    counts = (state.iteration, state.tokens_seen)
    checkpoints.save(paths.optimizer, moments, Header("optimizer", *counts, identity, {}))
    checkpoints.save(paths.checkpoint, weights, Header("weights", *counts, identity, {}))
    paths.partial.unlink(missing_ok=True)  # only now: the outputs replace it


def _write_log(state: TrainingState, path: Path, loops_path: Path) -> None:
    """Write the tables "training", with the environments, and "training_loops" of a segment."""
    log, groups = state.log, state.model.config.group_labels
    environments = {machine.ENVIRONMENTS: canonical_json(state.environments)}
    columns = {}
    for name in tables.columns("training"):
        columns[name] = [row[name] for row in log]
    with tables.writing("training", path, metadata=environments) as append:
        append(columns)
    with tables.writing("training_loops", loops_path) as append:
        append(
            {
                "iteration": [row["iteration"] for row in log for _ in groups],
                "group": list(groups) * len(log),
                "loops": [count for row in log for count in row["loops"]],
            }
        )
