"""Which modules an expensive job stands on: none that it does not compute, and all that determine its numbers."""

from pathlib import Path

import pytest

from tests.small import ROOT
from tests.unit.test_imports import CHECKOUT, KNOWN
from twoscale.jobs import fingerprint
from twoscale.workflow.core import JOBS

FUNCTIONS = {job.name: job.function for job in JOBS} | {"judge_claims": "twoscale.report.claims.judge_claims"}
MODEL = "config.definitions rng data.batches data.shards model.checkpoints model.flops model.interface model.kernels"
MODEL += " model.layers model.loss model.noise model.registry model.transformer"
EXITS = "dynamics.vectors exits.benchmark exits.captured_loops exits.contract exits.criteria exits.decoder"
EXITS += " exits.evaluation exits.parallel exits.references"
# Job -> the modules of the library that its fingerprint covers. An edit of one of them repeats the job: add a module
# only if the job computes with it, and never an importer, a log line, a page, a study or a measure of another job.
ALLOWED = {
    "init_model": MODEL,
    "train_segment": f"{MODEL} training.processes training.state training.trainer",
    "extract_trajectories": f"{MODEL} dynamics.measures dynamics.states dynamics.trajectories dynamics.vectors",
    "extract_states": f"{MODEL} data.tokenizer dynamics.state_paths dynamics.states",
    "benchmark_exits": f"{MODEL} {EXITS}",
    "measure_exit_quality": f"{MODEL} {EXITS}",
    # a few seconds
    "judge_claims": "rng claims.bootstrap claims.evidence claims.exits claims.geometry claims.regime claims.scale "
    "claims.verdicts report.claims report.render model.flops",
}


def roots(job: str) -> list[Path]:
    """The script of a job, and the module of the function that it calls."""
    if job not in FUNCTIONS:
        return [ROOT / "scripts" / f"{job}.py"]
    script = "call" if job == "judge_claims" else "measure"
    return [ROOT / "scripts" / f"{script}.py", KNOWN[FUNCTIONS[job].removeprefix("twoscale.").rpartition(".")[0]]]


@pytest.mark.parametrize("job", ALLOWED)
def test_a_job_stands_on_the_modules_of_its_list(job):
    names = {file: name for name, file in KNOWN.items() if file.name != "__init__.py"}
    assert {names[file] for file in fingerprint.covered(roots(job)) if file in names} == set(ALLOWED[job].split())


@pytest.mark.parametrize("job", ALLOWED)
def test_a_module_that_a_job_imports_is_in_its_fingerprint_or_determines_no_number(job):
    """The modules that no fingerprint covers, `twoscale.jobs.fingerprint.EXCLUDED`, must import none that counts."""
    covered = fingerprint.covered(roots(job))
    reached = {target for name, file in KNOWN.items() if file in covered for target in CHECKOUT.arrows[name]}
    through = {target for name in reached if KNOWN[name] not in covered for target in CHECKOUT.arrows[name]}
    free = ("base", "tables", "config", "jobs", "training.metrics_log")
    assert [name for name in reached | through if KNOWN[name] not in covered and not name.startswith(free)] == []


def test_training_and_the_core_stand_on_few_lines():
    training = fingerprint.covered(roots("train_segment"))
    assert sum(len(file.read_text().splitlines()) for file in training) <= 3_500
    assert CHECKOUT.lines(CHECKOUT.closure(planning=False)) <= 13_000
    planning = CHECKOUT.closure(planning=True)  # what reads a folder of a published model is imported by name
    assert [name for name in planning if name.startswith(("model.published", "studies"))] == []
