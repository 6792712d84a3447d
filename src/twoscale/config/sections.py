"""Config of exits, trajectories and figures, and the sections of the reproduction together.

Type, range, default, meaning and source of a key are defined only in the class of its section.
Defaults are the values of the paper (arXiv 2509.23314). Sources: "§" is a section of the paper,
"App." its appendix, "[G]" Geiping et al. 2025 (arXiv 2502.05171), to which the paper defers; "ours"
is a choice where both are silent.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from twoscale.base import did_you_mean
from twoscale.config.criteria import FACTS, check_threshold, counts_loops
from twoscale.config.data import (
    ComputeConfig,
    DataConfig,
    DownloadConfig,
    TokenizerConfig,
    TrainConfig,
)
from twoscale.config.definitions import whole_sequences
from twoscale.config.model import ModelConfig
from twoscale.config.types import (
    FILE_NAME,
    AtLeastTwo,
    Count,
    Distinct,
    Dtype,
    Flag,
    Fraction,
    InBatches,
    Natural,
    Positive,
    Section,
    Seed,
    Unique,
    key,
    plain,
    require,
)

_absent: Any = partial(Field, default=None, min_length=1, exclude_if=lambda value: value is None)


class CriterionConfig(Section):
    """Thresholds of one exit criterion. Criteria that are not built in also need a Python file and
    class.
    """

    thresholds: Annotated[tuple[Positive, ...], *Distinct] = Field(
        description="Values of tau to evaluate."
    )
    file: str | None = _absent(description="Python file of the criterion.")
    class_name: str | None = _absent(alias="class", description="Class in that file.")


def _without_nulls(criteria: Any) -> Any:
    """Remove the criteria that a layer sets to null; a mapping could otherwise only grow."""
    if not isinstance(criteria, Mapping):
        return criteria
    return {name: entry for name, entry in criteria.items() if entry not in (None, "null")}


def _with_types(criteria: dict[str, CriterionConfig]) -> dict[str, CriterionConfig]:
    """The criteria with whole numbers as thresholds where the criterion counts."""
    return {
        name: entry.model_copy(update={"thresholds": tuple(map(_whole, entry.thresholds))})
        if counts_loops(name)
        else entry
        for name, entry in criteria.items()
    }


def _whole(value: float) -> float:
    return int(value) if value == int(value) else value


Ascending = AfterValidator(lambda loops: tuple(sorted(set(loops))))
Criteria = Annotated[
    dict[str, CriterionConfig],
    Field(min_length=1),
    BeforeValidator(_without_nulls),
    AfterValidator(_with_types),
]


def _check_origin(key: str, name: str, entry: CriterionConfig) -> None:
    """Refuse a criterion that is neither built in nor has a file."""
    is_safe = re.fullmatch(FILE_NAME, name)
    require(is_safe, key, f"the name {name!r}", "letters, digits, '.', '_' and '-'")
    absent = "class" if entry.class_name is None else "file"
    are_both = (entry.file is None) == (entry.class_name is None)
    require(are_both, key, f"no {absent}", "a file and a class, or neither")
    if name in FACTS:
        expected = "another name for a criterion from a file: this one is built in"
        require(entry.file is None, f"{key}.file", repr(entry.file), expected)
    else:
        hint = did_you_mean(name, FACTS)
        expected = f"one of {', '.join(FACTS)}, or a file and a class{hint}"
        require(entry.file is not None, key, "an unknown criterion", expected)


def grids(**thresholds: Sequence[float]) -> dict[str, CriterionConfig]:
    """The default of a key `criteria`."""
    values = {name: CriterionConfig(thresholds=tuple(t)) for name, t in thresholds.items()}
    return _with_types(values)


# From 1e-5, the smallest of App. D, in steps of half a decade. At the last, about the root of the
# hidden size, every token exits at once.
_HALF_DECADES = [
    *(1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 0.01, 0.0316),
    *(0.1, 0.316, 1.0, 3.16, 10.0, 31.6),
]


class ExitsConfig(Section):
    """Quality and latency of exit criteria at the last checkpoint."""

    max_loops: Count = key(
        30, "Maximum number of loop steps per token and group.", source="Fig. 5, App. D"
    )
    criteria: Criteria = key(
        grids(
            fixed=[1, 30],
            step_norm=_HALF_DECADES,
            kl=_HALF_DECADES[:11],  # up to 1
            acceleration=_HALF_DECADES,
        ),
        "Exit criteria and their thresholds. App. D has 1e-5, 1e-4, 1e-3 and 1e-2. Claims 10 and 16"
        " compare criteria at equal quality and require finer grids that extend to a loss of"
        " quality (ours). fixed: 1 is the cheapest exit, with which claims 8, 9 and 15 compare full"
        " depth. null removes a criterion that the defaults or the preset include.",
        source="App. D",
    )
    readout: Literal["head", "remaining_layers"] = key(
        "head",
        "How to predict from a state inside a group: head applies the final norm and the head"
        " (§4, \"the model's "
        'decoder head"); remaining_layers [G] first applies the layers after the last group, and'
        " criteria that "
        "use predictions then process text position by position.",
        source="§4",
    )
    kv_slots: Count | None = key(
        None,
        "KV cache slots per token, shared by the loop steps as in [G]; text is then processed"
        " position by position. null: one slot per loop step.",
    )
    cuda_graphs: Flag = key(
        True,
        "Decode by replaying captured CUDA graphs. With one slot per loop step, several loop steps"
        " run at once, ahead of the exit decisions. CUDA only.",
    )
    compile: Flag = key(
        True,
        "Compile loop steps before capturing them (cuda_graphs). If this is impossible, for example"
        " without Triton, eager steps are captured. CUDA only.",
    )
    dtype: Literal["float32", "float64", "bfloat16"] = key(
        "float32",
        "Precision of weights, states and decisions. bfloat16 halves the memory traffic, but rounds"
        " steps below about 1/256 of the state, which distorts criteria on steps.",
    )
    quality_tokens: Count = key(
        16_384, "Held-out tokens for cross-entropy and perplexity, in whole sequences."
    )
    quality_batch_size: Count = key(4, "Sequences per batch.")
    random_draws: Count = key(
        3,
        "Number of draws of random exits of equal cost, with which every criterion is compared."
        " Each draw evaluates the text once more; fixed loops with the same mean need one more"
        " pass.",
    )
    latency_tokens: Count = key(
        64, "Timed tokens per repeat, spread over the context; at most model.context_length."
    )
    latency_segments: Count = key(
        4,
        "Number of positions in the context at which latency_tokens are timed. The preceding text"
        " is read untimed.",
    )
    latency_repeats: Count = key(5, "Timed repeats.")
    cost_repeats: Count = key(
        60,
        "Most repeats of the costs of loop steps and decisions, from which times are computed. From"
        " ten on, they end when the 95 % interval of the cost of an evaluation relative to a loop"
        " step is at most 3 % wide for every criterion.",
    )

    def check(self, config: "CoreConfig") -> None:
        check_latency_tokens("exits", self.latency_tokens, config)

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"quality_tokens": config.quality_sequences, "latency_repeats": self.latency_repeats}


def check_latency_tokens(section: str, tokens: int, config: "CoreConfig") -> None:
    most = config.model.context_length
    expected = f"at most model.context_length = {most}"
    require(tokens <= most, f"{section}.latency_tokens", tokens, expected)


class ScalingConfig(InBatches):
    """Quality at fixed loop counts, for every checkpoint (results/scaling.pdf)."""

    loops: Annotated[tuple[Count, ...], Field(min_length=1), Ascending] = key(
        (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
        "Loop counts, the same in every group. Counts up to exits.max_loops also appear in"
        " pareto.pdf as fixed loops.",
    )
    tokens: Count = key(16_384, "Held-out tokens per checkpoint, in whole sequences.")


class TrajectoriesConfig(InBatches):
    """Measurement of states along the loops of each checkpoint, on held-out text."""

    loops: AtLeastTwo = key(30, "Loop steps of every group.", source="Fig. 5")
    tokens: Count = key(8192, "Held-out tokens per checkpoint, in whole sequences.")
    batch_size: Count = key(2, "Sequences per batch; determines the memory use.")
    dtype: Dtype = key(
        "float64",
        "Precision. In float32, steps stop shrinking near 1e-5 and their angles are rounding"
        " errors.",
    )
    states_sequence: Natural = key(
        0, "Index of the measured sequence whose states are saved for Fig. 1.", source="Fig. 1"
    )

    def check(self, config: "CoreConfig") -> None:
        most = config.trajectory_sequences
        found, expected = (
            self.states_sequence,
            f"less than {most}, sequences in trajectories.tokens",
        )
        require(found < most, "trajectories.states_sequence", found, expected)


class PathTypesConfig(Section):
    """Criteria for the path type of a token: converging, orbiting or sliding, tested in this order,
    otherwise undecided. [G] names the types but gives no criteria.
    """

    window: AtLeastTwo = key(
        16, "Number of loop steps at the end of a trajectory that determine the type."
    )
    converging_rate: Fraction = key(
        0.95,
        "Converging: the fitted ratio of successive step norms is at most this value, or the last"
        " step is below the rounding floor.",
    )
    max_period: AtLeastTwo = key(8, "Orbiting: the state returns after 2 to max_period loop steps.")
    return_tolerance: Fraction = key(
        0.25, "Orbiting: maximum mean distance of a return, as a fraction of the mean step norm."
    )
    straightness: Fraction = key(
        0.5,
        "Sliding: minimum distance between the ends of the window, as a fraction of the window's"
        " path length.",
    )

    def check_keys(self) -> None:
        expected = f"at most path_types.window = {self.window}"
        require(self.max_period <= self.window, "path_types.max_period", self.max_period, expected)

    def check(self, config: "CoreConfig") -> None:
        loops = config.trajectories.loops
        expected = f"at most trajectories.loops = {loops}"
        require(self.window <= loops, "path_types.window", self.window, expected)


class FiguresConfig(Section):
    """Content of the figures."""

    fig1_tokens: Count = key(3, "Tokens in Fig. 1, the first three in colour.")
    loop_tokens: Count = key(
        60, "Tokens in results/loops.html, the first of trajectories.states_sequence."
    )
    dlr_reference_state: Literal["first_state", "projected", "final", "initial"] = key(
        "first_state",
        'State that Fig. 2 uses as "x^0 of the next group" in the drift-to-loop ratio: after the'
        " first loop step,"
        " after the input projection, after the last loop step, or the initial state.",
    )
    reading: Literal["state", "direction"] = key(
        "state",
        "Steps shown in Fig. 3, Fig. 5 and the variants: of the state x, as in the paper, or of the"
        " direction x / ||x||, which alone determines the output of a readout that begins with a"
        " norm.",
    )
    seed_band: bool = key(
        False,
        "Show the range over the seeds in `seeds` in Fig. 2, 3 and 5. This requires the runs of all"
        " seeds.",
    )

    def check(self, config: "CoreConfig") -> None:
        most = config.model.context_length
        expected = f"at most model.context_length = {most}, the tokens of a sequence"
        require(self.fig1_tokens <= most, "figures.fig1_tokens", self.fig1_tokens, expected)


class CoreConfig(Section):
    """The sections of the reproduction, and the checks of one section against the others."""

    seed: Seed = key(
        1337, "Seed of batches, loop counts and noise, which are functions of seed and iteration."
    )
    seeds: Annotated[tuple[Seed, ...], *Unique] = key(
        (), "Additional seeds for training and analysing the run and every run of a study."
    )
    compute: ComputeConfig = ComputeConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    trajectories: TrajectoriesConfig = TrajectoriesConfig()
    path_types: PathTypesConfig = PathTypesConfig()
    exits: ExitsConfig = ExitsConfig()
    scaling: ScalingConfig = ScalingConfig()
    figures: FiguresConfig = FiguresConfig()
    download: DownloadConfig = DownloadConfig()

    def sequences(self, section: str, key: str = "tokens") -> int:
        """Whole sequences in the number of tokens that a key of a section gives, at least one."""
        return whole_sequences(getattr(getattr(self, section), key), self.model.context_length)

    def whole_tokens(self, section: str, key: str = "tokens") -> int:
        """Tokens of these sequences."""
        return self.sequences(section, key) * self.model.context_length

    @property
    def training_tokens(self) -> int:
        """Tokens that a run is trained on, repeated ones included."""
        return self.train.iterations * self.train.batch_size * self.model.context_length

    @property
    def trajectory_sequences(self) -> int:
        return self.sequences("trajectories")

    @property
    def quality_sequences(self) -> int:
        return self.sequences("exits", "quality_tokens")

    @property
    def loop_grid(self) -> tuple[int, ...]:
        """The loop counts of scaling.loops below exits.max_loops, and exits.max_loops."""
        below = [loops for loops in self.scaling.loops if loops < self.exits.max_loops]
        return (*below, self.exits.max_loops)

    @property
    def sections(self) -> dict[str, Section]:
        return {name: value for name, value in self if isinstance(value, Section)}

    @property
    def exit_grids(self) -> dict[str, ExitsConfig]:
        """Name of a grid of thresholds -> its exits.

        "exit" is the grid of Fig. 4; the others belong to studies.
        """
        grids = {"exit": self.exits}
        for name, section in self.sections.items():
            if exits := section.exit_grid(self):
                grids[name] = exits
        return grids

    def check_keys(self) -> None:
        source = self.model.source
        tokenizer = self.tokenizer.name
        expected = "published" if source == "published" else "another tokenizer"
        fits = (source == "published") == (tokenizer == "published")
        require(fits, "tokenizer.name", tokenizer, f"{expected} for model.source: {source}")
        for name, section in self.sections.items():
            self._check_criteria(f"{name}.criteria", getattr(section, "criteria", {}))
        self._check_held_out_tokens()
        for section in self.sections.values():
            section.check(self)

    def _check_criteria(self, key: str, criteria: Mapping[str, CriterionConfig]) -> None:
        most = self.exits.max_loops
        for name, entry in criteria.items():
            _check_origin(f"{key}.{name}", name, entry)
            where = f"config key {key}.{name}.thresholds"
            for threshold in entry.thresholds:
                check_threshold(name, threshold, most, where, "exits.max_loops")
        has_gate = self.model.exit_gate or "exit_gate" not in criteria
        expected = "a model with model.exit_gate: true"
        require(has_gate, f"{key}.exit_gate", "the criterion", expected)

    def _check_held_out_tokens(self) -> None:
        needed = {}
        for name, section in self.sections.items():
            for own, count in section.needed_sequences(self).items():
                needed[f"{name}.{own}"] = count
        most = max(needed, key=needed.__getitem__)
        least = needed[most] * self.model.context_length + 1  # the last token needs a target
        found = self.data.held_out_tokens
        expected = f"at least {least} tokens, required by {most}"
        require(found >= least, "data.held_out_tokens", found, expected)


# Keys of `train` that control how far a run goes and how it is cut, monitored and distributed, but
# not what it computes. No checkpoint identity contains them, so a longer run, or one on more
# processes, continues another.
RUNTIME_KEYS = frozenset(
    "iterations checkpoint_every early_checkpoints save_seconds log_every print_seconds"
    " micro_batches processes nodes shard recompute prefetch peak_tflops".split()
)


def training_identity(config: CoreConfig) -> dict[str, Any]:
    """Everything that the weights of a checkpoint depend on, except its iteration and its text."""
    device = config.compute.device
    train = {key: value for key, value in plain(config.train).items() if key not in RUNTIME_KEYS}
    train["compile"] = config.train.compiles(device)
    train["precision"] = config.train.precision_on(device)
    model = plain(config.model)
    return {"seed": config.seed, "device": device, "model": model, "train": train}


def runtime(config: CoreConfig) -> dict[str, Any]:
    """The keys of `train` that training_identity leaves out."""
    return {key: value for key, value in plain(config.train).items() if key in RUNTIME_KEYS}
