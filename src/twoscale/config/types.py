"""Types of config values, the base of all sections, their error messages, and reading JSON."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from twoscale.base import InputError, did_you_mean, mismatch
from twoscale.config.definitions import whole_sequences

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# Names of runs and criteria, which are also names of folders and files: safe in a shell.
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def _parse_number(value: Any) -> Any:
    """Convert a string to the number in it; refuse booleans."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    if not isinstance(value, str):
        return value
    for number in (int, float):  # 1e-4 is a string in YAML 1.1
        with suppress(ValueError):
            return number(value)
    raise ValueError("Input should be a number")


def _parse_flag(value: Any) -> Any:
    """Convert the strings true and false."""
    if not isinstance(value, str):
        return value
    return {"true": True, "false": False}.get(value.lower(), value)


def _check_distinct(values: tuple) -> tuple:
    if len(set(values)) < len(values):
        raise ValueError("Input should be distinct values")
    return values


Number = BeforeValidator(_parse_number)
HomePath = Annotated[str, AfterValidator(os.path.expanduser)]  # no shell expands ~ inside YAML
Flag = Annotated[StrictBool, BeforeValidator(_parse_flag)]
Natural = Annotated[int, Field(ge=0), Number]
Seed = Annotated[int, Field(ge=0, lt=2**63), Number]
Count = Annotated[int, Field(ge=1), Number]
AtLeastTwo = Annotated[int, Field(ge=2), Number]
NonNegative = Annotated[float, Field(ge=0), Number]
Positive = Annotated[float, Field(gt=0), Number]
Fraction = Annotated[float, Field(gt=0, lt=1), Number]
WholeShare = Annotated[float, Field(ge=0, le=1), Number]
Unique = (Field(json_schema_extra={"uniqueItems": True}), AfterValidator(_check_distinct))
Distinct = (Field(min_length=1), *Unique)

Dtype = Literal["float32", "float64"]
Sandwich = Literal["post_residual", "branch"]
AdapterInit = Literal["random", "blend"]
StateInit = Literal["noise", "input", "input_plus_noise", "zero"]


def key(default: Any, description: str, *, source: str = "ours", **marks: bool) -> Any:
    """A key of a section; `source` says where its default is from.

    Marks: `derived=True` for a value that the user cannot set; `optional=True` for a key that
    `plain` leaves out at its default, so that runs from before the key keep their identity.
    """
    extra: dict[str, Any] = {"source": source, **marks}
    return Field(default, description=description, json_schema_extra=extra)


option = partial(key, optional=True)


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        """Refuse unknown keys, and what is no section; "null" is None."""
        if isinstance(values, BaseModel):
            return values
        if not isinstance(values, Mapping):
            raise ValueError("Input should be a section of keys")
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        if unknown := sorted(str(name) for name in values if name not in known):
            raise PydanticCustomError(_UNKNOWN, "{text}", {"text": unknown_keys(unknown, known)})
        # Snakemake's --config reads nested values as strings
        return {name: None if value == "null" else value for name, value in values.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check_keys()
        return self

    def check_keys(self) -> None:
        """Raise InputError if keys of the section do not fit each other."""

    # `config` is a CoreConfig, whose module imports this one

    def check(self, config: Any) -> None:
        """Raise InputError if the section does not fit the rest of the config."""

    def needed_sequences(self, config: Any) -> dict[str, int]:
        """Held-out sequences that the section needs, by the key that determines their number."""
        return {}

    def exit_grid(self, config: Any) -> Any:
        """The settings of `exits` with the criteria of this section, if it has any."""
        return None


class OnHeldOut(Section):
    """Base of sections on held-out text."""

    tokens: Count = key(8192, "Held-out tokens, in whole sequences.")

    def needed_sequences(self, config: Any) -> dict[str, int]:
        return {"tokens": whole_sequences(self.tokens, config.model.context_length)}


class InBatches(OnHeldOut):
    """Base of sections on held-out text that is read in batches."""

    batch_size: Count = key(4, "Sequences per batch; determines the memory use.")
    dtype: Dtype = key("float32", "Precision.")


def require(holds: Any, key: str, found: object, expected: str) -> None:
    if not holds:
        raise mismatch(f"config key {key}", found, expected)


# --- sections as plain values ---


def complete(section: BaseModel) -> dict[str, Any]:
    """A section as a JSON-able dict with every key: tuples become lists, sections dicts."""
    return section.model_dump(mode="json", by_alias=True, serialize_as_any=True)


def plain(section: BaseModel) -> dict[str, Any]:
    """A section as a JSON-able dict without optional keys at their default."""
    values = complete(section)
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if is_optional(field) and value == field.default:
            del values[name]
        elif isinstance(value, BaseModel):
            values[name] = plain(value)
    return values


def absent_values(*sections: BaseModel) -> list[dict[str, Any]]:
    """Keys that `plain` leaves out of each section: the optional ones, with their defaults."""
    return [
        {k: v.default for k, v in type(s).model_fields.items() if is_optional(v)} for s in sections
    ]


def is_optional(field: "FieldInfo") -> bool:
    """Whether the key may be absent from a slice or an identity, and then has its default."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and "optional" in extra


# --- errors ---

S = TypeVar("S", bound=BaseModel)
LONGEST_VALUE = 80
_UNKNOWN = "unknown_key"  # type of our error in pydantic's


def build(section: type[S], values: Any, name: str = "") -> S:
    """An instance of a section class; the first invalid key is an InputError.

    `name`: section of a nested class.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise InputError(_sentence(error, name)) from error


def _sentence(error: ValidationError, name: str) -> str:
    """pydantic's message on the first invalid key, with the key and what was found."""
    errors = error.errors(include_url=False)
    first = errors[0]
    place = _key(name, first["loc"])
    if first["type"] == _UNKNOWN:
        return f"config key {place or '(top level)'}: {first['msg']}."
    found = "nothing" if first["type"] == "missing" else shown(first["input"])
    # a key with several types has an error for each; our own errors are ValueErrors
    same = [entry for entry in errors if _key(name, entry["loc"]) == place]
    messages = [entry["msg"].removeprefix("Value error, ") for entry in same]
    expected = " or ".join(text.removeprefix("Input should be ") for text in messages)
    for word, ours in (("Tuple should have", "a list with"), ("tuple", "list")):
        expected = expected.replace(word, ours)
    # gpu is nearer to cpu than to cuda
    hint = did_you_mean(first["input"], re.findall(r"'([^']+)'", expected), cutoff=0.75)
    return f"config key {place}: found {found}, expected {expected}{hint}."


def _key(name: str, place: Sequence[int | str]) -> str:
    """The path of an error in dots, without pydantic's names of the types of a union."""
    parts = [name, *map(str, place)]
    return ".".join(part for part in parts if part and "[" not in part)


def unknown_keys(unknown: Sequence[str], known: Iterable[str]) -> str:
    hint = did_you_mean(unknown[0], known)
    return f"unknown key {', '.join(unknown)}, expected one of {', '.join(known)}{hint}"


def shown(value: Any) -> str:
    """A value as YAML has it, cut where it is long."""
    if value is None:
        return "nothing (null)"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


# --- JSON files ---

T = TypeVar("T")
JsonCount = Annotated[int, Field(ge=0, lt=2**63)]


def parse_json(content: str | bytes, form: type[T]) -> T:
    """JSON as a value of the type `form`, such as a dataclass.

    Nothing is converted: 1.0 is no whole number. Raises ValueError with one line for what is no
    JSON or of another form, or is nested too deeply.
    """
    return _valid(_adapter(form).validate_json, content)


def check_json(value: Any, form: Any) -> Any:
    """A parsed value as `parse_json` would return it. Raises ValueError with one line."""
    return _valid(_adapter(form).validate_python, value)


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _valid(validate: Callable[..., T], value: Any) -> T:
    try:
        return validate(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = _key("", first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error
