"""The configuration as frozen dataclasses, with the checks that no schema can express.

Types, ranges and unknown keys are the business of workflow/schemas/config.schema.yaml; here stand the
checks between keys, the derived values, and the schedule of checkpoints. Standard library only: the
Snakefile imports this module, and `snakemake -n` has to stay quick.

What each key means and which section of the paper it comes from is written once, beside the values,
in workflow/presets/paper.yaml.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from twoscale.errors import InputError

# Number of token ids of the tokenizers whose size is not a setting.
GPT2_VOCABULARY = 50257
BYTES_VOCABULARY = 257  # 256 bytes and the end of text
# Characters to collect for one held-out token of an own BPE, whose tokens cannot be counted before it is trained:
# twice what GPT-2's tokenizer takes in English.
CHARACTERS_PER_TOKEN = 9
# Rows of the embedding are padded to a multiple of this, as in nanoGPT (50257 -> 50304).
VOCABULARY_MULTIPLE = 64

# What one threshold of each built-in exit rule is; rules of the user take positive numbers.
THRESHOLD_TYPES: dict[str, type] = {
    "fixed": int,
    "step_norm": float,
    "step_norm_relative": float,
    "kl": float,
    "acceleration": float,
    "acceleration_normalized": float,
    "acceleration_relative": float,
    "entropy_diff": float,
    "argmax_stability": int,
    "cosine": float,
    "minp_kl": float,
}

# Keys of `train` that say how far a run goes and how it is cut, watched and spread, not what is computed:
# they stand in no identity of a checkpoint, so a longer run, or one on more processes, continues another.
RUNTIME_KEYS = frozenset(
    {
        "iterations",
        "checkpoint_every",
        "early_checkpoints",
        "save_seconds",
        "micro_batches",
        "processes",
        "compile",
        "recompute",
        "prefetch",
        "peak_tflops",
    }
)


@dataclass(frozen=True)
class Compute:
    device: str


@dataclass(frozen=True)
class Data:
    source: str
    path: str | None
    repository: str
    subset: str
    revision: str
    characters: int | None
    text_shards: int
    held_out_fraction: float
    tokens: int | None


@dataclass(frozen=True)
class Download:
    retries: int
    delay: float
    max_delay: float
    timeout: float
    part_characters: int


@dataclass(frozen=True)
class Tokens:
    tokenizer: str
    entries: int
    held_out: int

    @property
    def vocabulary(self) -> int:
        """Number of token ids, the end of text included."""
        return {"gpt2": GPT2_VOCABULARY, "bytes": BYTES_VOCABULARY, "bpe": self.entries}[self.tokenizer]


@dataclass(frozen=True)
class Model:
    layers: int
    heads: int
    width: int
    block: int
    vocabulary: int
    groups: tuple[tuple[int, ...], ...]
    mean_loops: float
    loops_sigma: float
    sandwich: str
    state_init: str
    loop_noise: float
    adapter_init: str
    exit_norm: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(tuple(group) for group in self.groups))
        if self.width % self.heads:
            raise InputError(
                f"config key model.num_heads: {self.heads} heads do not divide model.hidden_size {self.width}; "
                "expected a divisor."
            )
        seen: set[int] = set()
        for group in self.groups:
            if list(group) != list(range(group[0], group[0] + len(group))):
                raise InputError(
                    f"config key model.groups: found the group {list(group)}, expected a run of "
                    "consecutive layers in rising order."
                )
            if group[0] < 1 or group[-1] > self.layers:
                raise InputError(
                    f"config key model.groups: found the group {list(group)}, expected layers between "
                    f"1 and model.num_layers = {self.layers}."
                )
            if seen & set(group):
                raise InputError(
                    f"config key model.groups: layer {min(seen & set(group))} is in two groups, "
                    "expected disjoint groups."
                )
            if seen and group[0] < max(seen):
                raise InputError(
                    f"config key model.groups: the group {list(group)} comes after a deeper one, "
                    "expected the groups in the order of the layers."
                )
            seen |= set(group)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: the vocabulary rounded up to a multiple of 64."""
        return math.ceil(self.vocab_size / VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def group_labels(self) -> tuple[str, ...]:
        """Names of the groups in tables: "4", "5-6", "7"."""
        return tuple(group_label(group) for group in self.groups)

    @property
    def boundary_labels(self) -> tuple[str, ...]:
        """Names of the hand-offs between successive groups in tables: "4->5-6", "5-6->7"."""
        labels = self.group_labels
        return tuple(f"{left}->{right}" for left, right in pairwise(labels))

    @property
    def effective_depth(self) -> float:
        """Layers applied per token at the mean loop count: looped layers count `mean_loops` times."""
        looped = sum(len(group) for group in self.groups)
        return self.layers - looped + looped * self.mean_loops


@dataclass(frozen=True)
class Train:
    iterations: int
    checkpoint_every: int
    early_checkpoints: tuple[int, ...]
    save_seconds: float
    order: str
    batch: int
    micro_batches: int
    processes: int
    compile: bool
    recompute: bool
    prefetch: bool
    peak_tflops: float | None
    cpu_threads: int
    learning_rate: float
    min_learning_rate: float
    warmup_iterations: int
    lr_decay_iterations: int | None
    beta1: float
    beta2: float
    weight_decay: float
    clip: float
    backprop_depth: int | None
    held_out_every: int
    held_out_sequences: int
    held_out_loops: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "early_checkpoints", tuple(self.early_checkpoints))
        if self.iterations not in checkpoint_iterations(self):
            raise InputError(
                f"config key train.iterations: found {self.iterations}, expected a step of the checkpoint "
                f"schedule (a multiple of train.checkpoint_every = {self.checkpoint_every}), so that a "
                "longer run continues this one."
            )
        if self.batch % (self.micro_batches * self.processes):
            raise InputError(
                f"config key train.batch_size: {self.batch} sequences cannot be divided among train.processes "
                f"= {self.processes} times train.micro_batches = {self.micro_batches}; expected a multiple."
            )
        if self.min_learning_rate > self.learning_rate:
            raise InputError(
                f"config key train.min_learning_rate: found {self.min_learning_rate}, expected at most "
                f"train.learning_rate = {self.learning_rate}."
            )
        if self.lr_decay_iterations is not None and self.lr_decay_iterations <= self.warmup_iterations:
            raise InputError(
                f"config key train.lr_decay_iterations: found {self.lr_decay_iterations}, expected more "
                f"than train.warmup_iterations = {self.warmup_iterations}, or null for a constant rate."
            )


@dataclass(frozen=True)
class Trajectories:
    budget: int
    tokens: int
    batch: int
    dtype: str
    states_sequence: int


@dataclass(frozen=True)
class Exits:
    budget: int
    criteria: dict[str, dict[str, Any]]
    decoder: str
    kv_slots: int | None
    cuda_graphs: bool
    dtype: str
    quality_tokens: int
    quality_batch_size: int
    latency_tokens: int
    latency_repeats: int

    def __post_init__(self) -> None:
        check_criteria("exits.criteria", self.rules, self.budget)


@dataclass(frozen=True)
class Figures:
    fig1_tokens: int
    dlr_reference_state: str


@dataclass(frozen=True)
class Scaling:
    loops: tuple[int, ...]
    tokens: int
    batch: int
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "loops", tuple(sorted(set(self.loops))))


@dataclass(frozen=True)
class Pareto:
    criteria: dict[str, dict[str, Any]]
    quality_tokens: int
    latency_tokens: int
    latency_repeats: int


@dataclass(frozen=True)
class Kinds:
    window: int
    converging_rate: float
    max_period: int
    return_tolerance: float
    straightness: float

    def __post_init__(self) -> None:
        if self.max_period > self.window:
            raise InputError(
                f"config key path_types.max_period: found {self.max_period}, expected at most path_types.window = "
                f"{self.window}."
            )


@dataclass(frozen=True)
class PathIndependence:
    draws: int
    tokens: int


@dataclass(frozen=True)
class Readings:
    sandwich: tuple[str, ...]
    adapter_init: tuple[str, ...]
    state_init: tuple[str, ...]
    overrides: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Everything that one run is made of."""

    seed: int
    compute: Compute
    data: Data
    tokens: Tokens
    model: Model
    train: Train
    trajectories: Trajectories
    exits: Exits
    figures: Figures
    scaling: Scaling
    pareto: Pareto
    kinds: Kinds
    path_independence: PathIndependence
    download: Download
    readings: Readings

    def __post_init__(self) -> None:
        if self.tokens.vocabulary > 2**16:
            raise InputError(
                f"config key tokenizer.vocab_size: found {self.tokens.vocabulary}, expected at most 65536 "
                "(token shards are uint16)."
            )
        if self.data.source == "parquet" and not self.data.path:
            raise InputError(
                "config key data.path: found nothing, expected a parquet file or a folder of parquet "
                "files, because data.source is 'parquet'."
            )
        check_criteria("pareto.criteria", self.pareto.criteria, self.exits.max_loops)
        self._check_held_out()
        if self.trajectories.states_sequence >= self.trajectory_sequences:
            raise InputError(
                f"config key trajectories.states_sequence: found {self.trajectories.states_sequence}, expected "
                f"less than {self.trajectory_sequences}, the sequences that trajectories.tokens makes."
            )
        if self.path_types.window > self.trajectories.loops:
            raise InputError(
                f"config key path_types.window: found {self.path_types.window}, expected at most trajectories.loops = "
                f"{self.trajectories.loops} loop steps."
            )

    @property
    def trajectory_sequences(self) -> int:
        """Whole blocks in trajectories.tokens, at least one."""
        return max(1, self.trajectories.tokens // self.model.context_length)

    @property
    def quality_sequences(self) -> int:
        """Whole blocks in exits.quality_tokens, at least one."""
        return max(1, self.exits.quality_tokens // self.model.context_length)

    @property
    def scaling_sequences(self) -> int:
        """Whole blocks in scaling.tokens, at least one."""
        return max(1, self.scaling.tokens // self.model.context_length)

    @property
    def pareto_sequences(self) -> int:
        """Whole blocks in pareto.quality_tokens, at least one."""
        return max(1, self.pareto.quality_tokens // self.model.context_length)

    @property
    def loop_grid(self) -> tuple[int, ...]:
        """The fixed loop counts of scaling.loops that exits.max_loops allows, and that budget."""
        return (*(loops for loops in self.scaling.loops if loops < self.exits.max_loops), self.exits.max_loops)

    @property
    def dense_exits(self) -> Exits:
        """The exit benchmark of the Pareto figure: pareto.criteria over exits.criteria, `fixed` at every loop count."""
        criteria = {**self.exits.criteria, **self.pareto.criteria, "fixed": {"thresholds": list(self.loop_grid)}}
        return replace(self.exits, **{**vars(self.pareto), "criteria": criteria})

    @property
    def independence_sequences(self) -> int:
        """Whole blocks in path_independence.tokens, at least one."""
        return max(1, self.path_independence.tokens // self.model.context_length)

    def _check_held_out(self) -> None:
        needs = {
            "train.held_out_sequences": self.train.held_out_sequences,
            "trajectories.tokens": self.trajectory_sequences,
            "path_independence.tokens": self.independence_sequences,
            "exits.quality_tokens": self.quality_sequences,
            "exits.latency_repeats": self.exits.latency_repeats,
            "scaling.tokens": self.scaling_sequences,
            "pareto.quality_tokens": self.pareto_sequences,
            "pareto.latency_repeats": self.pareto.latency_repeats,
        }
        key = max(needs, key=needs.__getitem__)
        least = needs[key] * self.model.context_length + 1
        if self.data.held_out_tokens < least:
            raise InputError(
                f"config key data.held_out_tokens: found {self.data.held_out_tokens}, expected at least {least} tokens, which "
                f"{key} asks for."
            )
        for section in ("exits", "pareto"):
            tokens = getattr(self, section).latency_tokens
            if tokens > self.model.context_length:
                raise InputError(
                    f"config key {section}.latency_tokens: found {tokens}, expected at most "
                    f"model.context_length = {self.model.context_length}."
                )


def check_criteria(key: str, criteria: Mapping[str, Mapping[str, Any]], budget: int) -> None:
    """Refuse a rule that is neither built in nor names a file, and thresholds that do not fit their rule."""
    for name, rule in criteria.items():
        builtin = name in THRESHOLD_TYPES
        if builtin and "file" in rule:
            raise InputError(
                f"config key {key}.{name}.file: found {rule['file']!r}, expected another name for a rule of your own: "
                "this one is built in."
            )
        if not builtin and "file" not in rule:
            raise InputError(
                f"config key {key}.{name}: unknown rule, expected one of {', '.join(THRESHOLD_TYPES)}, or a file and "
                "a class."
            )
        for threshold in rule["thresholds"]:
            check_threshold(name, threshold, THRESHOLD_TYPES.get(name, float), budget, key)


def check_threshold(rule: str, threshold: Any, wanted: type, budget: int, key: str = "exits.criteria") -> None:
    """Refuse a threshold that is not a positive finite number of the rule's type."""
    kind = "a whole number of loops" if wanted is int else "a number"
    good_type = isinstance(threshold, int if wanted is int else (int, float)) and not isinstance(threshold, bool)
    if not good_type or not math.isfinite(threshold) or threshold <= 0:
        raise InputError(f"config key {key}.{rule}.thresholds: found {threshold!r}, expected {kind} > 0.")
    if rule == "fixed" and threshold > budget:
        raise InputError(
            f"config key {key}.{rule}.thresholds: found {threshold}, expected at most exits.max_loops = {budget}."
        )


def text_label(data: Data) -> str:
    """Name of the text in figures and captions."""
    match data.source:
        case "fineweb":
            return f"FineWeb {data.subset}"
        case "parquet":
            return f"parquet {data.path.rstrip('/').rpartition('/')[2]}"
        case _:
            return "Python documentation"


@dataclass(frozen=True)
class Budget:
    """How much text to collect of each part, in `unit`; None: no end."""

    unit: str
    training: int | None
    held_out: int | None


def budget(data: Data, tokens: Tokens) -> Budget:
    """The budget in tokens for GPT-2's tokenizer, which is there before the text, else in characters."""
    if tokenizer.name == "gpt2":
        return Budget("tokens", data.train_tokens, data.held_out_tokens)
    most = {"bytes": 1, "bpe": CHARACTERS_PER_TOKEN}[tokenizer.name]
    return Budget("characters", data.train_characters, most * data.held_out_tokens)


def group_label(group: tuple[int, ...]) -> str:
    return str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"


def checkpoint_iterations(train: Train) -> list[int]:
    """Steps of the trained checkpoints, rising; step 0, the untrained model, is not among them.

    Prefix-stable: a larger `iterations` only appends, because neither the early steps nor the grid
    depend on it.
    """
    grid = range(train.checkpoint_every, train.iterations + 1, train.checkpoint_every)
    early = (step for step in train.early_checkpoints if 0 < step <= train.iterations)
    return sorted({*grid, *early})


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overlay` on top, mapping by mapping; any other value of the overlay replaces.

    A rule under `exits.criteria` that the overlay sets to null is dropped, since a mapping could otherwise
    only grow.
    """
    merged = dict(base)
    for key, value in overlay.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping):
            merged[key] = merge(base[key], value)
            if key == "criteria":
                merged[key] = {name: rule for name, rule in merged[key].items() if rule is not None}
        else:
            merged[key] = value
    return merged


def from_config(config: Mapping[str, Any]) -> Settings:
    """Settings from a merged configuration that the schema has accepted."""
    tokens = Tokens(**config["tokens"])
    return Settings(
        seed=config["seed"],
        compute=Compute(**config["compute"]),
        data=Data(**config["data"]),
        tokens=tokens,
        model=Model(vocabulary=tokens.vocabulary, **config["model"]),
        train=Train(**config["train"]),
        trajectories=Trajectories(**config["trajectories"]),
        exits=Exits(**config["exits"]),
        figures=Figures(**config["figures"]),
        scaling=Scaling(**config["scaling"]),
        pareto=Pareto(**config["pareto"]),
        kinds=Kinds(**config["path_types"]),
        path_independence=PathIndependence(**config["path_independence"]),
        download=Download(**config["download"]),
        readings=Readings(**config["readings"]),
    )


def training_identity(settings: Settings) -> dict[str, Any]:
    """What the weights of a checkpoint depend on besides its step and its text."""
    return {
        "seed": settings.seed,
        "device": settings.compute.device,
        "model": asdict(settings.model),
        "train": {key: value for key, value in asdict(settings.train).items() if key not in RUNTIME_KEYS},
    }


def operation(settings: Settings) -> dict[str, Any]:
    """The rest of `train`: how far the run goes and how it is cut, watched and spread."""
    return {key: value for key, value in asdict(settings.train).items() if key in RUNTIME_KEYS}


def canonical_json(value: Any) -> str:
    """One string per value: keys sorted, no spaces that could vary. Tuples become lists."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
