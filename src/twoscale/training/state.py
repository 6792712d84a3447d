"""The state of a segment of training: its files, and how they are saved, checked, loaded and
restored.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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


# a step before the gradient, the first one with it, and those whose state has one too
GRAPHS_PER_GROUP = 3
# of the parts of a batch, which differ by one sequence where it is not divided evenly
BATCH_SIZES = 2


def check_compiler(device: str) -> None:
    if device != "cpu":
        return
    # imported here: it takes a second, and few runs compile on CPU
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        found = "no C++ compiler (the variable CXX, otherwise g++)"
        raise InputError(
            f"config key train.compile: found {found}, expected one, or false, on CPU."
        ) from error


def compile_blocks(model: LoopedModel, sharded: bool = False, **options: Any) -> None:
    """Compile the loop step of every group and every unlooped layer, each once whatever the loop
    counts.

    `options` are for torch.compile. Beyond its limit torch would silently run the rest uncompiled.
    Of a model that will be divided only `forward` is compiled, without the hooks that gather
    weights and would break the graph.
    """
    limit = GRAPHS_PER_GROUP * BATCH_SIZES * max(1, len(model.config.groups))
    # for the whole process, because not every version of torch.compile has the option
    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
    options |= {"dynamic": False}
    for module in model.blocks:
        if sharded:
            module.forward = torch.compile(module.forward, **options)
        else:
            module.compile(**options)


ADAM_EPSILON = 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter
PARTS = ("weights/", "optimizer/")  # what the names of tensors in a partial state begin with


@dataclass(frozen=True)
class SegmentPaths:
    """Files of one segment; `start` is the weights and, after iteration 0, the optimizer state to
    start from.
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
        return self.log.with_name(self.start[0].with_suffix(self.log.suffix).name)


@dataclass(frozen=True)
class Segment:
    """Iterations up to `until`, of the run with this identity.

    `run` is its name in messages, `version` the version of the code and config as in
    `twoscale.jobs.result_cache`.
    """

    until: int
    identity: dict[str, Any]
    run: str = "train"
    version: str = ""

    def unfinished(self, start: Path) -> "Segment":
        """The segment with the identity of its partial states, which are bound to code and start as
        well.
        """
        return replace(
            self,
            identity=self.identity | {"code": self.version, "start": checkpoints.digest(start)},
        )


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


# The state in which this process ended its last segment, by the digest of its weights and the
# identity of its run: a worker (`twoscale.jobs.worker`) trains the next segment from it.
_kept: dict[tuple[str, str], TrainingState] = {}


def load_state(config: SegmentConfig, segment: Segment, paths: SegmentPaths) -> TrainingState:
    """The state to train from: the partial state of the segment if there is one, otherwise the
    state of its start.
    """
    start = checkpoints.read_header(paths.start[0]).iteration
    if (
        partial := load_partial(paths.partial, start, segment.unfinished(paths.start[0]), config)
    ) is not None:
        return restore(config, *partial)
    key = (checkpoints.digest(paths.start[0]), canonical_json(segment.identity))
    if (state := _kept.pop(key, None)) is not None:
        return replace(state, log=[], environments=[])
    weights, header = checkpoints.load_weights(
        paths.start[0], segment.identity, config.model, _loads_on(config)
    )
    moments = (
        load_moments(paths.start[1], segment.identity, config, header.iteration)
        if header.iteration
        else {}
    )
    return restore(config, weights, moments, header)


def load_partial(
    path: Path, start: int, segment: Segment, config: SegmentConfig
) -> tuple[dict[str, Tensor], dict[str, Tensor], Header] | None:
    """Weights, moments and header that an interrupted attempt at this segment saved; None if there
    are none.

    A file of another segment or config, or one that cannot be read, is ignored.
    """
    if not path.exists():
        return None
    try:
        tensors, header = checkpoints.load(path, "partial", segment.identity, _loads_on(config))
        weights, moments = (
            {n.removeprefix(p): t for n, t in tensors.items() if n.startswith(p)} for p in PARTS
        )
        model = checkpoints.blank(config.model)
        check_tensors(path, weights, model.state_dict())
        check_moments(path, moments, set_trained(model, config.train))
    except InputError as error:
        print(f"restarting the segment: {error}", file=sys.stderr)
        return None
    has_log = len(header.extra["log"]) == header.iteration - start
    return (
        (weights, moments, header) if start < header.iteration < segment.until and has_log else None
    )


def load_moments(
    path: Path, identity: dict[str, Any], config: SegmentConfig, iteration: int
) -> dict[str, Tensor]:
    """AdamW's moments after `iteration`; an empty file, as a restored segment has, is refused."""
    if path.is_file() and not path.stat().st_size:
        raise InputError(
            f"{path}: found an empty file, the placeholder for the optimizer state of a restored"
            f" segment; remove "
            ".result_cache/checkpoints of the run and train with `snakemake --forcerun init_model`."
        )
    moments, header = checkpoints.load(path, "optimizer", identity, _loads_on(config))
    if header.iteration != iteration:
        raise InputError(
            f"{path}: found the optimizer state of iteration {header.iteration}, expected"
            f" {iteration}."
        )
    check_moments(path, moments, set_trained(checkpoints.blank(config.model), config.train))
    return moments


def check_moments(path: Path, moments: Mapping[str, Tensor], model: LoopedModel) -> None:
    trained = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    check_tensors(
        path,
        moments,
        {f"{name}.{moment}": parameter for name, parameter in trained for moment in MOMENTS},
    )


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
        check_compiler(config.device)
        compile_blocks(model, sharded)
    if sharded:
        shard_model(model, config.device)
    optimizer = make_optimizer(model, config.train)
    for name, parameter in model.named_parameters() if moments else ():
        if not parameter.requires_grad:
            continue
        updates = torch.tensor(float(header.iteration), device=parameter.device)
        parts = {m: moments[f"{name}.{m}"].to(parameter.device) for m in MOMENTS}
        if sharded:
            parts = {m: shard_like(whole, cast("DTensor", parameter)) for m, whole in parts.items()}
        optimizer.state[parameter] = {"step": updates} | parts
    log, environments = (list(header.extra.get(name, ())) for name in ("log", "environments"))
    return TrainingState(
        model, optimizer, header.iteration, header.tokens_seen, log, environments, sharded
    )


def make_optimizer(model: LoopedModel, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices and embeddings and none on the norms' vectors, as in nanoGPT."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (train.beta1, train.beta2)
    return torch.optim.AdamW(
        groups, lr=train.learning_rate, betas=betas, eps=ADAM_EPSILON, fused=True
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
    before = state.environments or machine.recorded_environments(previous_log)
    changes = machine.differences(before[-1], now) if before else []
    if changes and visible:
        print(
            f"warning: training continues in another environment ({'; '.join(changes)}), so the"
            f" weights may not be "
            "bit-identical to those of an uninterrupted run",
            file=sys.stderr,
        )
    if changes or not state.environments:
        state.environments = [*state.environments, {machine.FIRST: state.iteration + 1, **now}]


def tensors_of(state: TrainingState) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights, and AdamW's moments under the names of their parameters; of a divided model for the
    main process.
    """
    moments = {
        f"{name}.{moment}": state.optimizer.state[parameter][moment]
        for name, parameter in state.model.named_parameters()
        if parameter in state.optimizer.state
        for moment in MOMENTS
    }
    weights = dict(state.model.state_dict())
    return (gather(weights), gather(moments)) if state.sharded else (weights, moments)


def save_partial(
    path: Path, state: TrainingState, identity: dict[str, Any], is_main: bool = True
) -> None:
    """All of an unfinished segment in one file. With train.shard all processes call this, and the
    main one writes.
    """
    weights, moments = tensors_of(state)
    if not is_main:
        return
    parts = zip(PARTS, (weights, moments), strict=True)
    tensors = {f"{prefix}{name}": tensor for prefix, part in parts for name, tensor in part.items()}
    extra = {"log": state.log, "environments": state.environments}
    header = Header("partial", state.iteration, state.tokens_seen, identity, extra)
    checkpoints.save(path, tensors, header)


def write_segment(
    state: TrainingState, paths: SegmentPaths, identity: dict[str, Any], is_main: bool = True
) -> None:
    """Write the outputs of a segment; with train.shard all processes call this, and the main one
    writes.
    """
    weights, moments = tensors_of(state)
    if not is_main:
        return
    write_log(state, paths.log, paths.loops)
    for path, kind, tensors in (
        (paths.optimizer, "optimizer", moments),
        (paths.checkpoint, "weights", weights),
    ):
        checkpoints.save(
            path, tensors, Header(kind, state.iteration, state.tokens_seen, identity, {})
        )
    paths.partial.unlink(missing_ok=True)
    _kept.clear()
    _kept[checkpoints.digest(paths.checkpoint), canonical_json(identity)] = state


def write_log(state: TrainingState, path: Path, loops_path: Path) -> None:
    """Write the log of a segment as the tables "training" and "training_loops", the first with the
    environments.
    """
    log, groups = state.log, state.model.config.group_labels
    with tables.writing(
        "training", path, metadata={machine.ENVIRONMENTS: canonical_json(state.environments)}
    ) as append:
        append({name: [row[name] for row in log] for name in tables.columns("training")})
    rows = [
        (row["iteration"], group, count)
        for row in log
        for group, count in zip(groups, row["loops"], strict=True)
    ]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    with tables.writing("training_loops", loops_path) as append:
        append(dict(zip(tables.columns("training_loops"), columns, strict=True)))
