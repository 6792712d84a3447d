"""Which modules an expensive job stands on: none that it does not compute, and all that determine its numbers."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests import core
from tests.small import ROOT
from tests.unit.test_imports import KNOWN, arrows
from twoscale.jobs import fingerprint
from twoscale.jobs.rows import Measurement
from twoscale.workflow.core import JOBS

SOURCE = ROOT / "src" / "twoscale"

MODEL = {
    *("canonical", "json", "rng", "config.definitions", "data.shards"),
    *(
        f"model.{name}"
        for name in (
            *("attention", "checkpoints", "flops", "interface", "layers", "linear", "loss", "noise", "registry"),
            *("rms_norm", "rotary", "tensors", "transformer"),
        )
    ),
}
EXITS = {
    *("config.thresholds", "data.batches", "dynamics.vectors"),
    *(
        f"exits.{name}"
        for name in (
            *("benchmark", "captured_loops", "contract", "cost_matched", "criteria"),
            *("decoder", "evaluation", "kv_cache", "oracle", "parallel", "probe"),
        )
    ),
}
MEASURED = MODEL | {"data.batches", "model.checkpoint_job"}
# Functions that scripts/measure.py and scripts/compare.py call; the other jobs have a script of their own.
MEASURED_BY = {job.name: job.function for job in JOBS if isinstance(job, Measurement)}
FUNCTIONS = MEASURED_BY | {"judge_claims": "twoscale.report.pages.judge_claims"}
# Job -> the modules of the library that its fingerprint covers. An edit of one of them repeats the job: add a module
# only if the job computes with it, and never an importer, a log line, a page, a study or a measure of another job.
ALLOWED = {
    "init_model": MODEL,
    "train_segment": MODEL
    | {"data.batches"}
    | {
        f"training.{name}"
        for name in ("compilation", "exit_gate", "processes", "recipe", "sharding", "state", "trainer")
    },
    "extract_trajectories": MEASURED
    | {f"dynamics.{name}" for name in ("measures", "path_types", "states", "trajectories", "vectors")},
    "extract_states": MEASURED | {"data.tokenizer", "dynamics.sequence_states", "dynamics.states"},
    "benchmark_exits": MEASURED | EXITS,
    "measure_exit_quality": MEASURED | EXITS,
    "judge_claims": {
        *("canonical", "escaping", "rng"),
        *(f"claims.{name}" for name in ("bootstrap", "evidence", "exits", "findings", "geometry", "regime", "scale")),
        *("claims.verdicts", "report.pages", "report.render", "report.release", "model.flops"),
    },
}
TRAINING_LINES = 3_500

# Modules that these jobs import and no fingerprint covers, and why an edit cannot change a number.
UNCOVERED = {
    "config": "offers names of its modules",
    "config.identity": "its results are values in params",
    "config.loading": "its results are values in params",
    "config.messages": "sentences of errors",
    "config.sections": "its results are values in params",
    "config.types": "types of keys, the values of which are in params",
    **{f"config.{name}": "sections, the values of which are in params" for name in ("data", "exits", "model", "train")},
    "discovery": "finds the parts of studies",
    "tables": "columns and types are in params",
    "jobs.command": "options and sentences of errors",
    "errors": "sentences of errors",
    "files": "how files are written",
    "jobs.result_cache": "restores what was computed",
    "jobs.launch": "how processes start",
    "jobs.rows": "hands over files and tables",
    "jobs.machine": "checks of the machine",
    "progress": "meters",
    "jobs.environment": "what a log says of the environment",
    "training.metrics_log": "what is shown during training",
}
# Modules that only some of these jobs compute with; the others import them for sentences and checks of a config.
PARTLY = {"config.definitions", "config.thresholds", "escaping"}


def entry(job: str) -> Path:
    """The script of a job."""
    script = "measure" if job in MEASURED_BY else "compare" if job in FUNCTIONS else job
    return ROOT / "scripts" / f"{script}.py"


def called(job: str) -> set[str]:
    """The module with the function that the script of a job calls."""
    return {FUNCTIONS[job].removeprefix("twoscale.").rpartition(".")[0]} if job in FUNCTIONS else set()


@cache
def covered(script: str) -> dict[str, Path]:
    """Dotted name below `twoscale` -> file, of the modules in the fingerprint of a script."""
    roots = [entry(script), *(KNOWN[name] for name in called(script))]
    files = fingerprint._closure(roots) - {entry(script)}
    return {".".join(file.relative_to(SOURCE).with_suffix("").parts): file for file in files}


def imported(script: str) -> set[str]:
    """Modules of the library with any code that a script imports, directly or indirectly; nothing is excluded."""
    nodes = [node for node in ast.walk(ast.parse(entry(script).read_text())) if isinstance(node, ast.ImportFrom)]
    names = {node.module for node in nodes} | {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    unread = {name.removeprefix("twoscale.") for name in names} & KNOWN.keys() | called(script)
    found = set(unread)
    while unread:
        new = arrows()[unread.pop()] - found
        found |= new
        unread |= new
    return {name for name in found if fingerprint.normalised(KNOWN[name]) != fingerprint.EMPTY}


@pytest.mark.parametrize("script", ALLOWED)
def test_a_job_stands_on_the_modules_of_its_list(script):
    assert covered(script).keys() == ALLOWED[script]


def test_training_stands_on_few_lines():
    lines = sum(len(file.read_text().splitlines()) for file in covered("train_segment").values())
    assert lines <= TRAINING_LINES
    assert len(covered("train_segment")) <= 26


def test_the_figures_and_claims_stand_on_half_of_the_library():
    inside = core.inside()
    assert core.lines(inside) <= 16_820
    assert core.lines(inside) < core.lines(KNOWN.keys() - inside)


@pytest.mark.parametrize("script", ALLOWED)
def test_a_module_that_a_job_imports_is_in_its_fingerprint_or_determines_no_number(script):
    assert imported(script) - ALLOWED[script] <= UNCOVERED.keys() | PARTLY


def test_no_fingerprint_covers_what_determines_no_number():
    assert not set().union(*ALLOWED.values()) & UNCOVERED.keys()


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


@pytest.mark.parametrize("script", ALLOWED)
def test_another_constant_in_any_module_of_a_job_counts(script, tmp_path):
    """A fingerprint is the digest of the normalised text of every module that it covers."""
    for name, file in covered(script).items():
        edited = tmp_path / f"{name}.py"
        edited.write_text(with_another_constant(file.read_text()))
        assert fingerprint.normalised(edited) != fingerprint.normalised(file), name
