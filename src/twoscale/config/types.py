"""Types of config values, and the base of all sections."""

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    WithJsonSchema,
    model_validator,
)

from twoscale.base import InputError
from twoscale.config.identity import whole_sequences

if TYPE_CHECKING:
    from twoscale.config.exits import ExitsConfig
    from twoscale.config.sections import CoreConfig

# Names of runs and criteria, which are also names of folders and files: safe in a shell.
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def parse_number(value: Any) -> Any:
    """Convert a string to the number in it, because YAML 1.1 reads 1e-4 as a string. Refuse booleans."""
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        return float(value)


def parse_flag(value: Any) -> Any:
    """Convert true and false as a string, because Snakemake's --config reads nested values as strings."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def check_distinct(values: tuple) -> tuple:
    if len(set(values)) < len(values):
        raise ValueError("a value is repeated")
    return values


def sort_loops(loops: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(loops)))


def expand_home(path: str) -> str:
    """A path with the home folder in place of a leading ~, which a shell does not expand inside a YAML file."""
    return os.path.expanduser(path)


Number = BeforeValidator(parse_number)
HomePath = Annotated[str, AfterValidator(expand_home)]
Flag = Annotated[StrictBool, BeforeValidator(parse_flag)]
Natural = Annotated[int, Field(ge=0), Number]
Count = Annotated[int, Field(ge=1), Number]
AtLeastTwo = Annotated[int, Field(ge=2), Number]
NonNegative = Annotated[float, Field(ge=0), Number]
Positive = Annotated[float, Field(gt=0), Number]
Fraction = Annotated[float, Field(gt=0, lt=1), Number]
WholeShare = Annotated[float, Field(ge=0, le=1), Number]
POSITIVE_SCHEMA = {"type": "number", "exclusiveMinimum": 0}
Threshold = Annotated[int | float, Field(gt=0), Number, WithJsonSchema(POSITIVE_SCHEMA)]
Unique = (Field(json_schema_extra={"uniqueItems": True}), AfterValidator(check_distinct))
Distinct = (Field(min_length=1), *Unique)

Dtype = Literal["float32", "float64"]
Sandwich = Literal["post_residual", "branch"]
AdapterInit = Literal["random", "blend"]
StateInit = Literal["noise", "input", "input_plus_noise", "zero"]


def key(default: Any, description: str, *, source: str = "ours", derived: bool = False, optional: bool = False) -> Any:
    """A key of a section; `source` says where its default is from.

    `derived` marks a value that the user cannot set. `optional` marks a key that `identity.plain` leaves out at its
    default, so that runs from before the key keep their identity.
    """
    marks = {"derived": derived, "optional": optional}
    extra: dict[str, Any] = {"source": source, **{name: True for name, marked in marks.items() if marked}}
    return Field(default, description=description, json_schema_extra=extra)


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys refused.

    A section says itself what it needs of the others; by default nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check_keys()
        return self

    def check_keys(self) -> None:
        """Raise InputError if keys of the section do not fit each other."""

    def check(self, config: "CoreConfig") -> None:
        """Raise InputError if the section does not fit the rest of the config."""

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        """Held-out sequences that the section needs, by the key of the section that determines their number."""
        return {}

    def exit_grid(self, config: "CoreConfig") -> "ExitsConfig | None":
        """The settings of `exits` with the criteria of this section, if it has any."""
        return None


class OnHeldOut(Section):
    """Base of sections on held-out text."""

    tokens: Count = key(8192, "Held-out tokens, in whole sequences.")

    def needed_sequences(self, config: "CoreConfig") -> dict[str, int]:
        return {"tokens": whole_sequences(self.tokens, config.model.context_length)}


class InBatches(OnHeldOut):
    """Base of sections on held-out text that is read in batches."""

    batch_size: Count = key(4, "Sequences per batch; determines the memory use.")
    dtype: Dtype = key("float32", "Precision.")


def require(holds: Any, key: str, found: object, expected: str) -> None:
    """Raise InputError on a key unless `holds`."""
    if not holds:
        raise InputError(f"config key {key}: found {found}, expected {expected}.")


def check_sequence(key: str, sequence: int, config: "CoreConfig") -> None:
    """Refuse a sequence that is not among those in trajectories.tokens."""
    most = config.trajectory_sequences
    require(sequence < most, key, sequence, f"less than {most}, the number of sequences in trajectories.tokens")
