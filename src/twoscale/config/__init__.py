"""The config: sections and their checks, layers and runs, and the identities derived from them.

What is offered here reaches jobs as values in their params. Formulas that jobs compute themselves are imported from
`twoscale.config.definitions` and `twoscale.config.thresholds`, so that fingerprints cover them.
"""

from twoscale.config.data import BYTES_VOCAB_SIZE, GPT2_VOCAB_SIZE, DataConfig, DownloadConfig, TokenizerConfig
from twoscale.config.exits import CriterionConfig, ExitsConfig, ProbeConfig, ScalingConfig
from twoscale.config.identity import (
    CHARACTERS_PER_TOKEN,
    FILE_SOURCES,
    RUNTIME_KEYS,
    TextQuota,
    absent_values,
    checkpoint_iterations,
    complete,
    plain,
    runtime,
    text_label,
    text_quota,
    text_source,
    training_identity,
    whole_sequences,
)
from twoscale.config.loading import (
    DEFAULT_PRESET,
    IMPORTERS,
    PRESETS,
    PROJECT,
    ConfigSlice,
    checked,
    merge,
    model_config_class,
    modules_of_model,
    preset,
    read_yaml,
    runs,
    studies,
    user_config,
    user_values,
)
from twoscale.config.model import ModelConfig, RotaryScaling
from twoscale.config.sections import SECTIONS, Config, FiguresConfig, PathTypesConfig, TrajectoriesConfig
from twoscale.config.train import ComputeConfig, TrainConfig
from twoscale.config.types import Section
