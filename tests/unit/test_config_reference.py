"""The generated texts: paper.yaml, docs/config.md, docs/tables.md, JSON schema."""

import pytest
import yaml
from docs import reference

from twoscale import config, tables
from twoscale.config.loading import LAYER_KEYS, STUDY_SECTIONS, paper


def test_paper_yaml_is_up_to_date_and_has_every_key_at_its_default():
    text = reference.paper_yaml()
    assert yaml.safe_load(text) == paper()
    assert max(map(len, text.splitlines())) <= reference.WIDTH
    written = yaml.safe_load((config.PRESETS / "paper.yaml").read_text(encoding="utf-8"))
    known = paper().keys() & written.keys()  # studies may have been removed or added
    assert known >= paper().keys() - STUDY_SECTIONS.keys()
    assert all(written[key] == paper()[key] for key in known), "run make generated"


@pytest.mark.parametrize("name", [None, *config.SECTIONS])
def test_every_key_has_a_meaning_and_a_source(name):
    section = config.SECTIONS[name] if name else config.Config
    assert section.__doc__
    for key, field in section.model_fields.items():
        if name or key not in config.SECTIONS:
            assert field.description.endswith("."), key
            assert field.json_schema_extra["source"], key


def test_the_page_names_every_key_of_every_section():
    page = reference.config_page()
    for name, section in config.SECTIONS.items():
        assert f"## `{name}`" in page
        for key in set(section.model_fields) - {"vocab_size"}:
            assert f"| `{key}` |" in page


def test_the_page_of_tables_has_every_column_and_measure():
    pytest.importorskip("torch", reason="measures need torch")
    page = reference.tables_page()
    for name, columns in tables.CORE.items():
        section = page.partition(f"### `{name}`")[2].partition("\n##")[0]
        assert all(f"| `{column}` |" in section for column in columns), name
        assert ("| `step_norm` |" in section) == (name == "trajectories"), name


def test_the_schema_accepts_the_presets_and_refuses_an_unknown_key():
    schema = yaml.safe_load(reference.schema_yaml())
    assert set(schema["properties"]) == {*LAYER_KEYS, "seed", "seeds", *config.SECTIONS}
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    for path in config.PRESETS.glob("*.yaml"):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        # without the sections of studies that are not here
        validator.validate(
            {key: values[key] for key in values.keys() & schema["properties"].keys()}
        )
    for wrong in (
        {"modle": 1},
        {"model": {"vocab_size": 9}},
        {"runs": {"x": {"model": {"heds": 1}}}},
    ):
        assert not validator.is_valid(wrong)
    written = yaml.safe_load(
        (config.PROJECT / "workflow/schemas/config.schema.yaml").read_text(encoding="utf-8")
    )
    core = schema["properties"].keys() - STUDY_SECTIONS.keys()
    assert all(written["properties"][key] == schema["properties"][key] for key in core), (
        "run make generated"
    )
