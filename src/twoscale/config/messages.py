"""Turn the errors of pydantic into one sentence: the key, what was found, what was expected.

The expected value is described by the JSON schema of the key, so errors and docs/config.md use the same words.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from twoscale.base import InputError, did_you_mean

S = TypeVar("S", bound=BaseModel)
Schema = Mapping[str, Any]

NOUNS = {"integer": "whole number", "number": "number", "string": "string", "null": "null"}
BOUNDS = (("exclusiveMinimum", ">"), ("minimum", ">="), ("exclusiveMaximum", "<"), ("maximum", "<="))
LONGEST_VALUE = 80


def build(section: type[S], values: Any, name: str = "") -> S:
    """An instance of a section class; the first invalid key is an InputError. `name`: section of a nested class."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise InputError(sentence(section, error, name)) from error


def sentence(section: type[BaseModel], error: ValidationError, name: str = "") -> str:
    """One sentence on the most telling of pydantic's errors: unknown keys first, then the order of the keys."""
    errors = error.errors(include_url=False)
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    schema = section.model_json_schema()
    node, path = locate(schema, first["loc"])
    dotted = ".".join(filter(None, [name, *path])) or "(top level)"
    if first["type"] == "extra_forbidden":
        return unknown_key(dotted, unknown_keys(errors, first["loc"][:-1]), user_keys(opened(node, schema)))
    if first["type"] == "missing":
        return f"config key {dotted}: found nothing, expected {phrase(node)}."
    found = shown(first["input"]) + place(first["loc"])
    suggestion = did_you_mean(first["input"], choices(node), cutoff=0.75)  # gpu is nearer to cpu than to cuda
    return f"config key {dotted}: found {found}, expected {phrase(node)}{example(node)}{suggestion}."


def unknown_key(section: str, unknown: Sequence[str], known: Sequence[str]) -> str:
    """The sentence on unknown keys of a section."""
    suggestion = did_you_mean(unknown[0], known)
    return f"config key {section}: unknown key {', '.join(unknown)}, expected one of {', '.join(known)}{suggestion}."


def place(location: tuple[int | str, ...]) -> str:
    """Where in a list pydantic found a wrong value: " at index 0", " at index 0, 1" in a list of lists, or nothing."""
    indices = [str(part) for part in location if isinstance(part, int)]
    return f" at index {', '.join(indices)}" if indices else ""


def choices(node: Schema) -> list[str]:
    """The words that a key accepts; empty where it takes other values."""
    nested = [*node.get("anyOf", ()), node.get("items", {})]
    own = [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]
    return own + [word for option in nested if isinstance(option, Mapping) and option for word in choices(option)]


def example(node: Schema) -> str:
    """The default of a list of lists, whose form a phrase hardly shows; empty for other keys."""
    nested = node.get("type") == "array" and node["items"].get("type") == "array"
    return f", such as {node['default']}" if nested and node.get("default") else ""


def unknown_keys(errors: list[Any], section: tuple[int | str, ...]) -> list[str]:
    """The unknown keys of one section, sorted."""
    unknown = (entry["loc"] for entry in errors if entry["type"] == "extra_forbidden")
    return sorted(str(location[-1]) for location in unknown if location[:-1] == section)


def locate(schema: Schema, location: tuple[int | str, ...]) -> tuple[Schema, list[str]]:
    """The schema of the key at pydantic's location, and the path to it. Elements of lists count as their key."""
    node, path = schema, []
    for part in location:
        section = opened(node, schema)
        below = section.get("properties", {}).get(part) or section.get("additionalProperties")
        if not isinstance(below, Mapping):
            break
        node = resolved(below, schema)
        path.append(str(part))
    return node, path


def resolved(node: Schema, schema: Schema) -> Schema:
    """The definition that a node with a reference points to, or the node."""
    return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def opened(node: Schema, schema: Schema) -> Schema:
    """The section of a node that accepts a section or null, or the node."""
    sections = [option for option in node.get("anyOf", ()) if "$ref" in option]
    return resolved(sections[0], schema) if sections else node


def user_keys(node: Schema) -> list[str]:
    """Keys of a section that the user can set."""
    return [key for key, value in node["properties"].items() if not value.get("derived")]


def shown(value: Any) -> str:
    """A value as YAML has it, cut where it is long."""
    if value is None:
        return "nothing (null)"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"


def phrase(node: Schema) -> str:
    """Values that a key accepts: "a whole number >= 1", "one of cpu, cuda", "a list of …"."""
    match node:
        case {"anyOf": options}:
            return " or ".join(map(phrase, options))
        case {"enum": values}:
            return f"one of {', '.join(values)}"
        case {"const": value}:
            return value
        case {"type": "null"}:
            return "null"
        case {"$ref": _}:
            return "a section of keys"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "array"} | {"type": "object"}:
            return f"a {collection(node)}"
    return f"a {plain_noun(node)}{bounds(node)}"


def collection(node: Schema, plural: str = "") -> str:
    """A list or a mapping: "nonempty list of distinct numbers > 0", "section of keys"."""
    if "properties" in node:
        return "section of keys"
    nonempty = "nonempty " if node.get("minItems") or node.get("minProperties") else ""
    if node["type"] == "object":
        return f"{nonempty}mapping of names to sections"
    distinct = "distinct " if node.get("uniqueItems") else ""
    return f"{nonempty}list{plural} of {distinct}{elements(node['items'])}"


def elements(node: Schema) -> str:
    """The plural of `phrase`, without an article."""
    match node:
        case {"enum": values}:
            return f"values out of {', '.join(values)}"
        case {"type": "array"}:
            return collection(node, plural="s")
    return f"{plain_noun(node)}s{bounds(node)}"


def plain_noun(node: Schema) -> str:
    return f"string that matches `{node['pattern']}`" if "pattern" in node else NOUNS[node["type"]]


def bounds(node: Schema) -> str:
    """The range of a number: " >= 1", " > 0 and < 1", or nothing."""
    limits = [f"{sign} {node[keyword]}" for keyword, sign in BOUNDS if keyword in node]
    return f" {' and '.join(limits)}" if limits else ""
