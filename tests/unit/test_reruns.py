"""Which modules an expensive job stands on: none that it does not compute, and all that determine
its numbers.
"""

import ast
from pathlib import Path

import pytest

from tests.rules import call_of, config_of, rules
from tests.small import ROOT
from tests.unit.test_imports import CHECKOUT, KNOWN
from twoscale.jobs import fingerprint

# Rule -> its script, and the dotted path of the function that the script calls, if any.
JOBS = {name: call_of(rule) for name, rule in rules().items()}
JOBS = {
    name: call
    for name, call in JOBS.items()
    if len(call) == 2 or name in ("init_model", "train_segment")
}
MODEL = (
    "config.definitions rng data.batches data.shards model.checkpoints model.flops"
    " model.interface model.kernels"
)
MODEL += " model.layers model.loss model.noise model.registry model.transformer"
FIXED_LOOPS = (
    "config.criteria dynamics.vectors exits.captured_loops exits.contract exits.criteria"
    " exits.decoder exits.evaluation"
)
FIXED_LOOPS += " exits.parallel exits.cost_matched exits.references"
EXITS = f"{FIXED_LOOPS} exits.benchmark exits.costs"
DEPTH = (
    "config.criteria dynamics.measures dynamics.states dynamics.vectors exits.contract"
    " exits.criteria exits.passes"
)
# Job -> the modules of the library that its fingerprint covers. An edit of one of them repeats the
# job: add a module only if the job computes with it, and never an importer, a log line, a page, a
# study or a measure of another job.
ALLOWED = {
    "init_model": MODEL,
    "train_segment": f"{MODEL} training.processes training.state training.trainer",
    "extract_trajectories": f"{MODEL} dynamics.measures dynamics.states dynamics.trajectories"
    f" dynamics.vectors",
    "extract_states": f"{MODEL} data.tokenizer dynamics.state_paths dynamics.states",
    "measure_loop_tokens": f"{MODEL} {DEPTH.replace('dynamics.measures ', '')} data.tokenizer"
    " exits.loop_tokens",
    "benchmark_exits": f"{MODEL} {EXITS}",
    "measure_exit_quality": f"{MODEL} {EXITS}",
    "benchmark_pareto": f"{MODEL} {EXITS}",
    "measure_exit_regret": f"{MODEL} {FIXED_LOOPS} dynamics.states exits.passes"
    " replay.oracle"
    " studies.arena.measure",
    "measure_lens": f"{MODEL} {DEPTH} studies.depth.measure",
    "measure_scaling": f"{MODEL} {FIXED_LOOPS}",
    "measure_depth": f"{MODEL} {DEPTH} studies.depth.measure",
    "measure_path_independence": f"{MODEL} dynamics.states dynamics.vectors studies.paths.measure",
    "measure_spectrum": f"{MODEL} dynamics.arnoldi dynamics.states dynamics.vectors"
    f" studies.spectrum.measure",
    "measure_baseline": f"{MODEL} {FIXED_LOOPS}",
    # a few seconds
    "judge_claims": "config.criteria rng claims.bootstrap claims.costs claims.estimates claims.evidence"
    " claims.exits claims.findings claims.geometry claims.regime claims.scale claims.verdicts"
    " claims.words exits.references exits.table"
    " report.claims report.render model.flops",
}


# Modules without a fingerprint, because they determine no number: files, messages, processes, and
# the config and the columns, whose values are params.
FREE = ("base", "tables", "config", "figures.catalogue", "jobs", "training.metrics_log")


def roots(job: str) -> list[Path]:
    """The script of a job, and the module of the function that it calls."""
    script, *functions = JOBS[job]
    modules = [function.removeprefix("twoscale.").rpartition(".")[0] for function in functions]
    return [ROOT / script, *(KNOWN[module] for module in modules)]


@pytest.mark.parametrize(
    "job", [job for job in ALLOWED if job in JOBS]
)  # a study may have been removed
def test_a_job_stands_on_the_modules_of_its_list(job):
    names = {file: name for name, file in KNOWN.items() if file.name != "__init__.py"}
    assert {names[file] for file in fingerprint.covered(roots(job)) if file in names} == set(
        ALLOWED[job].split()
    )


@pytest.mark.parametrize("job", JOBS)
def test_a_module_that_a_job_imports_is_in_its_fingerprint_or_determines_no_number(job):
    """The modules that no fingerprint covers, `twoscale.jobs.fingerprint.EXCLUDED`, must import
    none that counts.

    So does the module `study` of a study, if a measurement or a drawing imports a value from it.
    """
    covered = fingerprint.covered(roots(job))
    reached = {
        target
        for name, file in KNOWN.items()
        if file in covered
        for target in CHECKOUT.arrows[name]
    }
    through = {
        target for name in reached if KNOWN[name] not in covered for target in CHECKOUT.arrows[name]
    }
    assert [
        name
        for name in reached | through
        if KNOWN[name] not in covered and not name.startswith(FREE)
    ] == []


def test_a_figure_is_drawn_again_after_an_edit_of_its_own_module_or_of_what_all_figures_share():
    # the page of the loops is no figure
    plots = {job for job in JOBS if job.startswith("plot_")} - {"plot_loops"}
    drawn = {job for job in JOBS if KNOWN["figures.fig2"] in fingerprint.covered(roots(job))}
    shared = {job for job in JOBS if KNOWN["figures.style"] in fingerprint.covered(roots(job))}
    assert drawn == {"plot_fig2"}
    assert plots <= shared
    assert not shared & {*ALLOWED, "aggregate_metrics", "join_exit_quality", "write_claims_page"}


# Keys of the config -> the jobs that they shape. Results of these repeat further jobs.
SHAPED = {
    "figure": ({"figures": {"fig1_tokens": 5}}, {"plot_fig1"}),
    "latency": ({"exits": {"latency_repeats": 1}}, {"benchmark_exits"}),
    "criterion": (
        {"exits": {"criteria": {"cosine": {"thresholds": [1.0e-2]}}}},
        {"benchmark_exits", "benchmark_pareto", "measure_exit_regret", "measure_loop_tokens"},
    ),
    "files and messages": ({"download": {"retries": 1}, "train": {"save_seconds": 5}}, set()),
}


@pytest.mark.parametrize("keys", SHAPED)
def test_a_key_of_the_config_shapes_the_jobs_that_compute_with_it_and_no_other(keys):
    changed, expected = SHAPED[keys]
    # a snapshot has the whole config; the measurement of a criterion is planned in
    # tests/workflow/test_planning.py
    jobs = JOBS.keys() - {"take_snapshot", "measure_exit_quality"}
    shaped = {job for job in jobs if config_of(job) != config_of(job, **changed)}
    assert shaped == expected & JOBS.keys()  # a study may have been removed


def test_an_edit_of_any_function_that_a_job_reaches_changes_its_fingerprint():
    """Each function, method and inner function gets one more statement; its code is part of the
    fingerprint's text.
    """
    (statement,) = ast.parse("edited = True").body
    unnoticed = []
    for file in set().union(*(fingerprint.covered(roots(job)) for job in JOBS)):
        text = fingerprint.normalised(file)
        functions = [
            node
            for node in ast.walk(ast.parse(file.read_bytes()))
            if isinstance(node, ast.FunctionDef)
        ]
        codes = [fingerprint._Code().dump(function) for function in functions]
        for function, code in zip(functions, codes, strict=True):
            function.body.append(statement)
            if code not in text or fingerprint._Code().dump(function) == code:
                unnoticed.append(f"{file.name}: {function.name}")
    assert unnoticed == []


def test_training_and_the_core_stand_on_few_lines():
    training = fingerprint.covered(roots("train_segment"))
    assert sum(len(file.read_text().splitlines()) for file in training) <= 3_700
    assert CHECKOUT.lines(CHECKOUT.closure(planning=False)) <= 18_400  # with the whole config
    planning = CHECKOUT.closure(
        planning=True
    )  # what reads a folder of a published model is imported by name
    assert [name for name in planning if name.startswith(("model.published", "studies"))] == []
