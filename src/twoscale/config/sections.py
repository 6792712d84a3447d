"""The config of a run: one class per section. Type, range, default, meaning and source of a key are defined only there.

Defaults are the values of the paper (arXiv 2509.23314). Sources: "§" is a section of the paper, "App." its appendix,
"[G]" Geiping et al. 2025 (arXiv 2502.05171), to which the paper defers; "ours" is a choice where both are silent.
A study adds the sections in its module `config`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import create_model

from twoscale.config.data import DataConfig, DownloadConfig, TokenizerConfig
from twoscale.config.exits import CriterionConfig, ExitsConfig, ProbeConfig, ScalingConfig, check_criteria
from twoscale.config.identity import whole_sequences
from twoscale.config.model import ModelConfig
from twoscale.config.train import ComputeConfig, TrainConfig
from twoscale.config.types import (
    AtLeastTwo,
    Count,
    Dtype,
    Fraction,
    InBatches,
    Natural,
    Section,
    Unique,
    check_sequence,
    key,
    require,
)
from twoscale.discovery import study_parts


class TrajectoriesConfig(InBatches):
    """Measurement of states along the loops of each checkpoint, on held-out text."""

    loops: AtLeastTwo = key(30, "Loop steps of every group.", source="Fig. 5")
    tokens: Count = key(8192, "Held-out tokens per checkpoint, in whole sequences.")
    batch_size: Count = key(2, "Sequences per batch; determines the memory use.")
    dtype: Dtype = key(
        "float64", "Precision. In float32, steps stop shrinking near 1e-5 and their angles are rounding errors."
    )
    states_sequence: Natural = key(
        0, "Index of the measured sequence whose states are saved for Fig. 1.", source="Fig. 1"
    )

    def check(self, config: "CoreConfig") -> None:
        check_sequence("trajectories.states_sequence", self.states_sequence, config)


class PathTypesConfig(Section):
    """Criteria for the path type of a token: converging, orbiting or sliding, tested in this order, otherwise
    undecided. [G] names the types but gives no criteria.
    """

    window: AtLeastTwo = key(16, "Number of loop steps at the end of a trajectory that determine the type.")
    converging_rate: Fraction = key(
        0.95,
        "Converging: the fitted ratio of successive step norms is at most this value, or the last step is below "
        "the rounding floor.",
    )
    max_period: AtLeastTwo = key(8, "Orbiting: the state returns after 2 to max_period loop steps.")
    return_tolerance: Fraction = key(
        0.25, "Orbiting: maximum mean distance of a return, as a fraction of the mean step norm."
    )
    straightness: Fraction = key(
        0.5, "Sliding: minimum distance between the ends of the window, as a fraction of the window's path length."
    )

    def check_keys(self) -> None:
        expected = f"at most path_types.window = {self.window}"
        require(self.max_period <= self.window, "path_types.max_period", self.max_period, expected)

    def check(self, config: "CoreConfig") -> None:
        loops = config.trajectories.loops
        require(self.window <= loops, "path_types.window", self.window, f"at most trajectories.loops = {loops}")


class FiguresConfig(Section):
    """Content of the figures."""

    fig1_tokens: Count = key(8, "Tokens in Fig. 1, one polyline each.")
    dlr_reference_state: Literal["first_state", "projected", "final", "initial"] = key(
        "first_state",
        'State that Fig. 2 uses as "x^0 of the next group" in the drift-to-loop ratio: after the first loop step,'
        " after the input projection, after the last loop step, or the initial state.",
    )
    reading: Literal["state", "direction"] = key(
        "state",
        "Steps shown in Fig. 3, Fig. 5 and the variants: of the state x, as in the paper, or of the direction x / "
        "||x||, which alone determines the output of a readout that begins with a norm.",
    )
    seed_band: bool = key(
        False,
        "Show the range over the seeds in `seeds` in Fig. 2, 3 and 5. This requires the runs of all seeds.",
    )

    def check(self, config: "CoreConfig") -> None:
        most = config.model.context_length
        expected = f"at most model.context_length = {most}, the tokens of a sequence"
        require(self.fig1_tokens <= most, "figures.fig1_tokens", self.fig1_tokens, expected)


class Derived:
    """Values derived from several sections. A job that needs one has it in its slice, by its name."""

    if TYPE_CHECKING:  # the sections that it reads; annotations outside this block would be fields of the config
        model: ModelConfig
        exits: ExitsConfig
        scaling: ScalingConfig

    def sequences(self, section: str, key: str = "tokens") -> int:
        """Whole sequences in the number of tokens that a key of a section gives, at least one."""
        return whole_sequences(getattr(getattr(self, section), key), self.model.context_length)

    def whole_tokens(self, section: str, key: str = "tokens") -> int:
        """Tokens of these sequences."""
        return self.sequences(section, key) * self.model.context_length

    @property
    def trajectory_sequences(self) -> int:
        """Whole sequences in trajectories.tokens, at least one."""
        return self.sequences("trajectories")

    @property
    def quality_sequences(self) -> int:
        """Whole sequences in exits.quality_tokens, at least one."""
        return self.sequences("exits", "quality_tokens")

    @property
    def loop_grid(self) -> tuple[int, ...]:
        """The loop counts of scaling.loops below exits.max_loops, and exits.max_loops."""
        return (*(loops for loops in self.scaling.loops if loops < self.exits.max_loops), self.exits.max_loops)


class CoreConfig(Derived, Section):
    """The sections of the reproduction, and the checks of one section against the others."""

    seed: Natural = key(1337, "Seed of batches, loop counts and noise, which are functions of seed and iteration.")
    seeds: Annotated[tuple[Natural, ...], *Unique] = key(
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
    probe: ProbeConfig = ProbeConfig()
    figures: FiguresConfig = FiguresConfig()
    download: DownloadConfig = DownloadConfig()

    @property
    def sections(self) -> dict[str, Section]:
        """The sections by name."""
        return {name: getattr(self, name) for name in SECTIONS}

    @property
    def exit_grids(self) -> dict[str, ExitsConfig]:
        """Name of a grid of thresholds -> its exits: "exit" is the one of Fig. 4, the others belong to studies."""
        further = {name: section.exit_grid(self) for name, section in self.sections.items()}
        return {"exit": self.exits} | {name: exits for name, exits in further.items() if exits is not None}

    def check_keys(self) -> None:
        model = self.model.model_copy(update={"vocab_size": self.tokenizer.num_ids})
        object.__setattr__(self, "model", model)  # the class is frozen for everyone else
        name = "published" if model.source == "published" else "another tokenizer"
        fits = (model.source == "published") == (self.tokenizer.name == "published")
        require(fits, "tokenizer.name", self.tokenizer.name, f"{name} for model.source: {model.source}")
        for name, section in self.sections.items():
            self._check_criteria(f"{name}.criteria", getattr(section, "criteria", {}))
        self._check_held_out_tokens()
        for section in self.sections.values():
            section.check(self)

    def _check_criteria(self, key: str, criteria: Mapping[str, CriterionConfig]) -> None:
        check_criteria(key, criteria, self.exits.max_loops)
        gate = self.model.exit_gate or "exit_gate" not in criteria
        require(gate, f"{key}.exit_gate", "the criterion", "a model with model.exit_gate: true")
        trained = self.model.source == "trained" or "probe" not in criteria
        expected = "a model that is trained here: the probe is fitted on training text"
        require(trained, f"{key}.probe", "the criterion for a published model", expected)

    def _check_held_out_tokens(self) -> None:
        needed = {
            f"{name}.{key}": count
            for name, section in self.sections.items()
            for key, count in section.needed_sequences(self).items()
        }
        most = max(needed, key=needed.__getitem__)
        least = needed[most] * self.model.context_length + 1
        found = self.data.held_out_tokens
        require(found >= least, "data.held_out_tokens", found, f"at least {least} tokens, which {most} requires")


STUDY_SECTIONS: dict[str, type[Section]] = {
    name: section for part in study_parts("config").values() for name, section in part.SECTIONS.items()
}

if TYPE_CHECKING:

    class Config(CoreConfig):
        """For the type checker, which does not know the sections of studies."""

        def __getattr__(self, name: str) -> Any: ...

else:
    Config = create_model(
        "Config",
        __base__=CoreConfig,
        __doc__="All sections of one run.",
        **{name: (section, section()) for name, section in STUDY_SECTIONS.items()},
    )

SECTIONS: dict[str, type[Section]] = {
    name: cast(type[Section], field.annotation)
    for name, field in Config.model_fields.items()
    if name not in ("seed", "seeds")
}
