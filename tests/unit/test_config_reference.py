"""The generated texts: paper.yaml, docs/config.md, JSON schema."""

import json
import re

import pytest
import yaml

from twoscale import config
from twoscale.config import reference
from twoscale.config.loading import LAYER_KEYS
from twoscale.config.loading import paper as paper_values

FILES = reference.generated_files()


def of_known_sections(text):
    """A generated file without the sections of studies that are not here."""
    blocks = re.split(r"\n\n(?=# |## )", text)
    names = [re.search(r"^(?:## `(\w+)`|(\w+):)", block, re.MULTILINE) for block in blocks]
    known = [name is None or name[name.lastindex] in config.Config.model_fields for name in names]
    return [block for block, is_known in zip(blocks, known, strict=True) if is_known]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_generated_files_are_up_to_date(path):
    written = of_known_sections(path.read_text(encoding="utf-8"))
    assert written == of_known_sections(FILES[path]), "run python -m twoscale.config.reference"


@pytest.mark.parametrize("name", [None, *config.SECTIONS])
def test_every_key_has_a_meaning_and_a_source(name):
    section = config.SECTIONS[name] if name else config.Config
    assert section.__doc__
    for key, field in section.model_fields.items():
        if section is config.Config and key in config.SECTIONS:
            continue
        assert field.description, key
        assert field.description.endswith("."), key
        assert field.json_schema_extra["source"], key


def test_paper_yaml_has_every_key_at_its_default():
    assert yaml.safe_load(reference.paper_yaml()) == paper_values()


def test_paper_yaml_keeps_its_width():
    assert max(map(len, reference.paper_yaml().splitlines())) <= reference.WIDTH


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, 6e-4, 3.16e-5, 1e-8, 1e22, 123456.5, 2.5e6])
def test_yaml_1_1_reads_every_float_as_the_same_float(value):
    again = yaml.safe_load(reference.yaml_value(value))
    assert (again, type(again)) == (value, float)


def test_the_page_names_every_key_of_every_section():
    page = reference.config_page()
    for name, section in config.SECTIONS.items():
        assert f"## `{name}`" in page
        for key in set(section.model_fields) - {"vocab_size"}:
            assert f"| `{key}` |" in page


def test_the_schema_knows_the_keys_of_the_sections_and_no_others():
    schema = reference.json_schema()
    assert set(schema["properties"]) == {*LAYER_KEYS, "seed", "seeds", *config.SECTIONS}
    assert schema["additionalProperties"] is False
    for name, section in config.SECTIONS.items():
        node = schema["$defs"][section.__name__]
        derived = {"vocab_size"} if name == "model" else set()
        assert set(node["properties"]) == set(section.model_fields) - derived
        assert node["additionalProperties"] is False


def test_the_schema_accepts_the_presets_and_refuses_an_unknown_key():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(reference.json_schema()))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for path in config.PRESETS.glob("*.yaml"):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        # without the sections of studies that are not here
        validator.validate({key: values[key] for key in values.keys() & schema["properties"].keys()})
    for wrong in ({"modle": 1}, {"model": {"vocab_size": 9}}, {"runs": {"x": {"model": {"heds": 1}}}}):
        assert not validator.is_valid(wrong)
