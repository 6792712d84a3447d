"""Types of config values, the base of all sections, their error messages, and the reading of JSON
files.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from twoscale.base import InputError, did_you_mean
from twoscale.config.definitions import whole_sequences

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

# Names of runs and criteria, which are also names of folders and files: safe in a shell.
FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def parse_number(value: Any) -> Any:
    """Convert a string to the number in it, because YAML 1.1 reads 1e-4 as a string. Refuse
    booleans.
    """
    if isinstance(value, bool):
        raise ValueError("Input should be a number")
    if not isinstance(value, str):
        return value
    for number in (int, float):
        with suppress(ValueError):
            return number(value)
    raise ValueError("Input should be a number")


def parse_flag(value: Any) -> Any:
    """Convert true and false as a string, because Snakemake's --config reads nested values as
    strings.
    """
    return (
        {"true": True, "false": False}.get(value.lower(), value)
        if isinstance(value, str)
        else value
    )


def check_distinct(values: tuple) -> tuple:
    if len(set(values)) < len(values):
        raise ValueError("Input should be distinct values")
    return values


Number = BeforeValidator(parse_number)
HomePath = Annotated[
    str, AfterValidator(os.path.expanduser)
]  # a shell does not expand ~ inside a YAML file
Flag = Annotated[StrictBool, BeforeValidator(parse_flag)]
Natural = Annotated[int, Field(ge=0), Number]
Seed = Annotated[int, Field(ge=0, lt=2**63), Number]
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


def key(
    default: Any,
    description: str,
    *,
    source: str = "ours",
    derived: bool = False,
    optional: bool = False,
) -> Any:
    """A key of a section; `source` says where its default is from.

    `derived` marks a value that the user cannot set. `optional` marks a key that `plain` leaves out
    at its default, so that runs from before the key keep their identity.
    """
    marks = {"derived": derived, "optional": optional}
    extra: dict[str, Any] = {"source": source} | {
        name: True for name, marked in marks.items() if marked
    }
    return Field(default, description=description, json_schema_extra=extra)


option = partial(key, optional=True)


class Section(BaseModel):
    """Base of all sections: immutable, unknown keys refused. A section says itself what it needs of
    the others.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True
    )

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
        """Held-out sequences that the section needs, by the key of the section that determines
        their number.
        """
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
        raise InputError(f"config key {key}: found {found}, expected {expected}.")


# --- sections as plain values ---


def complete(section: BaseModel) -> dict[str, Any]:
    """A section as a JSON-able dict with every key: tuples become lists, nested sections become
    dicts.
    """
    return section.model_dump(mode="json", by_alias=True, serialize_as_any=True)


def plain(section: BaseModel) -> dict[str, Any]:
    """A section as a JSON-able dict without optional keys at their default."""
    values = complete(section)
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if is_optional(field) and value == field.default:
            del values[name]
        elif hasattr(value, "model_dump"):
            values[name] = plain(value)
    return values


def absent_values(*sections: BaseModel) -> list[dict[str, Any]]:
    """Keys that `plain` leaves out of each section: the optional ones, with their defaults."""
    return [
        {k: v.default for k, v in type(s).model_fields.items() if is_optional(v)} for s in sections
    ]


def is_optional(field: "FieldInfo") -> bool:
    """Whether the key may be absent from a section of a slice or an identity, and then has its
    default.
    """
    return _marked(field, "optional")


def _marked(field: "FieldInfo", mark: str) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(mark))


# --- errors ---

S = TypeVar("S", bound=BaseModel)
LONGEST_VALUE = 80
# our words for errors of pydantic that name classes
WORDS = {"model_type": "Input should be a section of keys", "missing": "Input should be a value"}
UNION_TAG = re.compile(
    r"(int|float|bool|str)$|.*\["
)  # the end of the path of a key with several types


def build(section: type[S], values: Any, name: str = "") -> S:
    """An instance of a section class; the first invalid key is an InputError. `name`: section of a
    nested class.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise InputError(_sentence(section, error, name)) from error


def _sentence(section: type[BaseModel], error: ValidationError, name: str) -> str:
    """One sentence on the most telling of pydantic's errors: unknown keys first, then the order of
    the keys.
    """
    errors = error.errors(include_url=False)
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    place = first["loc"][:-1]
    path = [part for part in first["loc"] if isinstance(part, str) and not UNION_TAG.match(part)]
    prefix = [name] if name else []
    if first["type"] == "extra_forbidden":
        unknown = [
            str(e["loc"][-1])
            for e in errors
            if e["type"] == first["type"] and e["loc"][:-1] == place
        ]
        fields = _section_at(section, path[:-1]).model_fields.items()
        known = [field.alias or name for name, field in fields if not _marked(field, "derived")]
        return unknown_key(".".join([*prefix, *path[:-1]]), sorted(unknown), known)
    found = "nothing" if first["type"] == "missing" else shown(first["input"])
    if indices := ", ".join(str(part) for part in first["loc"] if isinstance(part, int)):
        found += f" at index {indices}"
    # a key with several types has an error for each
    options = (
        [e for e in errors if e["loc"][:-1] == place]
        if UNION_TAG.match(str(first["loc"][-1]))
        else [first]
    )
    texts = dict.fromkeys(
        WORDS.get(e["type"], e["msg"].removeprefix("Value error, ")) for e in options
    )
    expected = " or ".join(text.removeprefix("Input should be ") for text in texts)
    for word, ours in (("tuple", "list"), ("Tuple", "a list"), ("Dictionary", "a mapping")):
        expected = expected.replace(word, ours)
    verb = (
        "expected "
        if next(iter(texts)).startswith("Input should be ")
        else "expected another value: "
    )
    # gpu is nearer to cpu than to cuda
    suggestion = did_you_mean(first["input"], re.findall(r"'([^']+)'", expected), cutoff=0.75)
    return f"config key {'.'.join([*prefix, *path])}: found {found}, {verb}{expected}{suggestion}."


def _section_at(section: type[BaseModel], path: Sequence[str]) -> type[BaseModel]:
    """The class of a nested section; the name of an entry, such as a criterion, is no key."""

    def inner(annotation: Any) -> Any:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        return next(filter(None, map(inner, get_args(annotation))), None)

    for part in path:
        if part in section.model_fields:
            section = inner(section.model_fields[part].annotation) or section
    return section


def unknown_key(section: str, unknown: Sequence[str], known: Sequence[str]) -> str:
    expected = f"expected one of {', '.join(known)}{did_you_mean(unknown[0], known)}"
    return f"config key {section or '(top level)'}: unknown key {', '.join(unknown)}, {expected}."


def shown(value: Any) -> str:
    """A value as YAML has it, cut where it is long."""
    if value is None:
        return "nothing (null)"
    text = (
        str(value).lower()
        if isinstance(value, bool)
        else str(value)
        if isinstance(value, date)
        else repr(value)
    )
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


# --- JSON files ---

T = TypeVar("T")
JsonCount = Annotated[int, Field(ge=0, lt=2**63)]


def parse_json(content: str | bytes, form: type[T]) -> T:
    """JSON as a value of the type `form`, such as a dataclass. Nothing is converted: 1.0 is no
    whole number.

    Raises ValueError with one line for what is no JSON or of another form, or is nested too deeply.
    """
    try:
        return _adapter(form).validate_json(content, strict=True)
    except ValidationError as error:
        raise ValueError(_problem(error)) from error


def check_json(value: Any, form: Any) -> Any:
    """A parsed value as `parse_json` would return it. Raises ValueError with one line."""
    try:
        return _adapter(form).validate_python(value, strict=True)
    except ValidationError as error:
        raise ValueError(_problem(error)) from error


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
