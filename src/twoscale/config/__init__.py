"""The config: sections and their checks, layers and runs, and the identities derived from them."""

from twoscale.config.data import BYTES_VOCAB_SIZE, GPT2_VOCAB_SIZE, DataConfig, DownloadConfig, TokenizerConfig
from twoscale.config.definitions import NOISE_STD, THRESHOLD_TYPES, ModelSizes, check_threshold
from twoscale.config.exits import CriterionConfig, ExitsConfig, ProbeConfig, ScalingConfig
from twoscale.config.identity import (
    CHARACTERS_PER_TOKEN,
    FILE_SOURCES,
    RUNTIME_KEYS,
    TextQuota,
    boundary_label,
    checkpoint_iterations,
    complete,
    group_label,
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
    PRESETS,
    PROJECT,
    ConfigSlice,
    checked,
    merge,
    model_config_class,
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
