"""The crate of a finished run, in the eyes of a validator of RO-Crates."""

import io
import json

import pytest

from tests.workflow.conftest import Project, editable, finished  # noqa: F401 - two fixtures

pytest.importorskip("rocrate", reason="needs rocrate: make test-packaging")
services = pytest.importorskip("rocrate_validator.services", reason="needs roc-validator: make test-packaging")
requests = pytest.importorskip("requests")
requests_cache = pytest.importorskip("requests_cache")

CONTEXT = "https://w3id.org/ro/crate/1.1/context"
# What the terms of the crates mean in the context of RO-Crate 1.1; the validator refuses a crate with another term.
OF_SCHEMA_ORG = """
    ComputerLanguage ControlAction CreateAction CreativeWork Dataset HowTo HowToStep Organization OrganizeAction
    ScholarlyArticle SoftwareApplication SoftwareSourceCode about additionalType author citation contentSize
    datePublished description encodingFormat endTime exampleOfWork hasPart identifier instrument license mainEntity
    mentions name object position programmingLanguage result softwareVersion startTime step url valueRequired version
    workExample
"""
TERMS = {term: f"http://schema.org/{term}" for term in OF_SCHEMA_ORG.split()} | {
    "ComputationalWorkflow": "https://bioschemas.org/ComputationalWorkflow",
    "File": "http://schema.org/MediaObject",
    "FormalParameter": "https://bioschemas.org/FormalParameter",
    "conformsTo": "http://purl.org/dc/terms/conformsTo",
    "input": "https://bioschemas.org/ComputationalWorkflow#input",
}


class Offline(requests.adapters.BaseAdapter):
    """Answers every request with these terms."""

    def send(self, request, **_):
        content = json.dumps({"@context": TERMS}).encode()
        response = requests.Response()
        response.status_code, response.url, response.request = 200, request.url, request
        response.headers["Content-Type"] = "application/ld+json"
        response.raw = requests.packages.urllib3.HTTPResponse(io.BytesIO(content), status=200, preload_content=False)
        return response

    def close(self):
        pass


@pytest.fixture
def cache(tmp_path):
    """A cache of the validator that has the context, so that it needs no network."""
    path = tmp_path / "cache"
    with requests_cache.CachedSession(str(path), backend="sqlite") as session:
        session.mount(CONTEXT, Offline())
        session.get(CONTEXT).raise_for_status()
    return path


@pytest.fixture
def crate(editable):  # noqa: F811
    editable.succeed("rocrate")
    return editable.root / "results/rocrate"


def issues(crate, cache):
    """What the validator says against the profile Provenance Run Crate and those that it builds on."""
    settings = services.ValidationSettings(
        rocrate_uri=str(crate), profile_identifier="provenance-run-crate", offline=True, cache_path=cache
    )
    found = services.validate(settings).get_issues()
    return [f"{issue.check.identifier} {issue.violatingEntity}: {issue.message}" for issue in found]


def test_a_crate_is_valid_and_one_without_its_workflow_is_not(crate, cache):
    assert issues(crate, cache) == []
    metadata = json.loads((crate / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    graph = {entity["@id"]: entity for entity in metadata["@graph"]}
    check_lineage(crate, graph)
    graph["./"]["mainEntity"] = {"@id": "README.md"}
    (crate / "ro-crate-metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    assert issues(crate, cache) != []


def check_lineage(crate, graph):
    """From a figure back to the text: every file has the job that made it, with its times."""
    made_by = {
        result["@id"]: entity
        for entity in graph.values()
        if entity["@type"] == "CreateAction" and entity["@id"] != "#run"
        for result in listed(entity["result"])
    }
    action = made_by["results/fig4.svg"]
    rules = []
    while action is not None:
        assert action["startTime"] <= action["endTime"]
        rules.append(action["instrument"]["@id"])
        inputs = [entity["@id"] for entity in listed(action.get("object", []))]
        action = next((made_by[name] for name in inputs if name in made_by), None)
    assert rules[:2] == ["#rule/show_figure", "#rule/plot_fig4"]
    assert "#rule/prepare_text" in rules
    results = [entity["@id"] for entity in listed(graph["#run"]["result"])]
    assert {"results/claims.md", "results/tiny/tables/exit_quality.parquet", "manifest.json"} <= set(results)
    assert all((crate / name).stat().st_size == int(graph[name]["contentSize"]) for name in results)
    checkpoint = graph["#results/tiny/checkpoints/iteration_000020.safetensors"]
    assert checkpoint["@type"] == "CreativeWork"
    assert len(checkpoint["sha256"]) == 64


def listed(value):
    return value if isinstance(value, list) else [value]


def test_the_workflow_in_a_crate_plans_the_run_again(crate, editable):  # noqa: F811
    project = Project(crate)
    (crate / "config.yaml").write_text("preset: demo\n")  # the config of the run is in config.json
    assert project.plan("--forceall", "--configfile", "config.json") == editable.plan("--forceall")
    assert "results/tiny/checkpoints" in project.succeed("-n", "--forceall", "--configfile", "config.json").stdout
