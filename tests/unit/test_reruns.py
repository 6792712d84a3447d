"""Which modules an expensive job stands on: none that it does not compute, and all that determine its numbers."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests import core
from tests.small import ROOT, job_row
from tests.unit.test_imports import KNOWN, arrows
from twoscale.jobs import fingerprint
from twoscale.jobs.rows import TorchJob, module_of
from twoscale.workflow.core import JOBS

SOURCE = ROOT / "src" / "twoscale"
MODEL = {"rng", "config.definitions", "data.batches", "data.shards", "model"}
MEASURED = MODEL | {"dynamics"}
# Job -> the modules of the library, or whole rooms, that its fingerprint may cover. An edit of one of them repeats the
# job: add one only if the job computes with it, and never an importer, a log line, a page, a study or a client.
ALLOWED = {
    "init_model": MODEL,
    "train_segment": MODEL | {"training"},
    "extract_trajectories": MEASURED,
    "extract_states": MEASURED | {"data.tokenizer"},
    "benchmark_exits": MEASURED | {"exits"},
    "measure_exit_quality": MEASURED | {"exits"},
    "judge_claims": {"rng", "claims", "model.flops", "report.pages", "report.render", "report.release"},
}
# Of these rooms: importers of published models, what is shown during training, programs of users.
NEVER = {"model.published", "model.trained_run", "training.metrics_log", "exits.generate", "exits.on_text"}
# Imported by these jobs and covered by no fingerprint: values in params, files, messages, processes, planning.
UNCOVERED = {"base", "tables", "config", "jobs", "workflow", "training.metrics_log", "figures.catalogue", "data.text"}


def within(name: str, rooms: set[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def roots(job: str) -> list[Path]:
    """The script of a job, and the module of the function that it calls."""
    if job in ("init_model", "train_segment"):
        return [ROOT / "scripts" / f"{job}.py"]
    row = job_row(JOBS, job)
    script = "measure" if isinstance(row, TorchJob) else "call"
    return [ROOT / "scripts" / f"{script}.py", KNOWN[module_of(row.function).removeprefix("twoscale.")]]


@cache
def covered(job: str) -> dict[str, Path]:
    """Dotted name below `twoscale` -> file, of the modules in the fingerprint of a job."""
    files = [file for file in fingerprint.covered(roots(job)) if SOURCE in file.parents]
    names = [".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return dict(zip(names, files, strict=True))


def imported(job: str) -> set[str]:
    """Modules of the library with any code that a job imports, directly or indirectly; nothing is excluded."""
    script, *called = roots(job)
    nodes = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    names = {node.module for node in nodes} | {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    unread = {name.removeprefix("twoscale.") for name in names} & KNOWN.keys()
    unread |= {name for name, file in KNOWN.items() if file in called}
    found = set(unread)
    while unread:
        new = arrows()[unread.pop()] - found
        found |= new
        unread |= new
    return {name for name in found if KNOWN[name].name != "__init__.py"}  # a package offers names of its modules


@pytest.mark.parametrize("job", ALLOWED)
def test_a_job_stands_on_its_rooms_and_on_no_importer_page_or_log(job):
    assert [name for name in covered(job) if not within(name, ALLOWED[job])] == []
    assert [name for name in covered(job) if within(name, NEVER)] == []


@pytest.mark.parametrize("job", ALLOWED)
def test_a_module_that_a_job_imports_is_in_its_fingerprint_or_determines_no_number(job):
    # only some of these jobs compute with the definitions of sizes; the others import them for checks of a config
    found = imported(job) - covered(job).keys() - {"config.definitions", "twoscale", ""}
    assert [name for name in found if not within(name, UNCOVERED)] == []


def test_training_stands_on_few_lines():
    files = covered("train_segment").values()
    assert len(files) <= 20
    assert sum(len(file.read_text().splitlines()) for file in files) <= 3_500


def test_the_figures_and_claims_stand_on_a_part_of_the_library():
    assert core.lines(core.inside()) <= 14_600


@pytest.mark.parametrize("job", ALLOWED)
def test_another_constant_in_any_module_of_a_job_counts(job, tmp_path):
    """A fingerprint is the digest of the normalised text of every module that it covers."""
    for name, file in covered(job).items():
        edited = tmp_path / f"{name}.py"
        edited.write_text(with_another_constant(file.read_text()))
        assert fingerprint.normalised(edited) != fingerprint.normalised(file), name


def with_another_constant(text: str) -> str:
    """The code of a module after an edit of its first number, otherwise of its first string that is no docstring."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    numbers = [node for node in constants if type(node.value) in (int, float)]
    words = [node for node in constants if isinstance(node.value, str)]
    if not numbers + words:
        return text + "EDITED = 1\n"
    (numbers + words)[0].value += 1 if numbers else "x"
    return ast.unparse(tree)
