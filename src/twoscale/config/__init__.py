"""The config: sections and their checks, layers and runs, and the identities derived from them.

Values of the config reach jobs in their params; only the formulas of `twoscale.config.definitions`
are covered by the fingerprints of the code.
"""

from twoscale.config.data import (
    BYTES_VOCAB_SIZE,
    FILE_SOURCES,
    DataConfig,
    DownloadConfig,
    TextQuota,
    TokenizerConfig,
    TrainConfig,
    checkpoint_iterations,
    text_label,
    text_quota,
    text_source,
)
from twoscale.config.definitions import whole_sequences
from twoscale.config.loading import (
    IMPORTERS,
    PRESETS,
    PROJECT,
    SECTIONS,
    Config,
    ConfigSlice,
    checked,
    folder_reader,
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
from twoscale.config.model import ModelConfig
from twoscale.config.sections import (
    RUNTIME_KEYS,
    CriterionConfig,
    ExitsConfig,
    PathTypesConfig,
    ScalingConfig,
    TrajectoriesConfig,
    runtime,
    training_identity,
)
from twoscale.config.types import Section, absent_values, complete, plain
