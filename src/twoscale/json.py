"""Reading and checking of untrusted JSON."""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

T = TypeVar("T")
Count = Annotated[int, Field(ge=0, lt=2**63)]


def parse(content: str | bytes, form: type[T]) -> T:
    """JSON as a value of the type `form`, such as a dataclass. Nothing is converted: 1.0 is no whole number.

    Raises:
        ValueError: with one line, for what is no JSON or of another form, or is nested too deeply.
    """
    try:
        return _adapter(form).validate_json(content, strict=True)
    except ValidationError as error:
        raise ValueError(_problem(error)) from error


def checked(value: Any, form: Any) -> Any:
    """A parsed value as `parse` would return it. Raises ValueError with one line."""
    try:
        return _adapter(form).validate_python(value, strict=True)
    except ValidationError as error:
        raise ValueError(_problem(error)) from error


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _problem(error: ValidationError) -> str:
    """The first of pydantic's errors."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
