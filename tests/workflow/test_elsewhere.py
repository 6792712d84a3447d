"""The workflow from another folder, and as a module of another workflow, from a folder or from a
Git repository.
"""

import re

import pytest

from tests.workflow.conftest import TARGETS, Project, publish

pytestmark = pytest.mark.runs

CONFIG = {"preset": "tiny", "seed": 5}
FIGURES_AND_MORE = ("all", "supplementary")
TOKENS = "results/tiny/data/tokens.json"


@pytest.fixture
def elsewhere(tmp_path_factory):
    """A folder without this workflow."""
    return Project(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def planned(fresh):
    """The jobs of the workflow in its own folder."""
    fresh.configure(**CONFIG)
    return fresh.plan(*FIGURES_AND_MORE)


def test_one_rule_is_imported_after_all_of_them_and_alone_it_is_refused_in_one_sentence(
    fresh, elsewhere
):
    module = f"module twoscale:\n    snakefile: {str(fresh.root / 'Snakefile')!r}\n"
    module += f"    config: {CONFIG}\n"
    one = "use rule extract_trajectories from twoscale as {} with:\n    threads: 2\n"
    for name in ("et", "ts_*"):
        (elsewhere.root / "Snakefile").write_text(module + one.format(name))
        elsewhere.refused("use rule extract_trajectories from this module: expected", "-n")
    everything = "use rule * from twoscale as ts_*\n"
    (elsewhere.root / "Snakefile").write_text(
        module + everything + one.format("ts_extract_trajectories")
    )
    said = elsewhere.succeed("-n", "ts_all").stdout
    assert re.search(r"^ts_extract_trajectories +3$", said, re.M)
    assert "threads: 2" in said


def test_a_dry_run_of_a_workflow_that_imports_two_with_rules_on_runs_is_checked(fresh, elsewhere):
    (elsewhere.root / "Snakefile").write_text(
        "rule mine:\n    output: '{run}.mine'\n    shell: 'touch {output}'\n"
        + "".join(
            f"module {run}:\n    snakefile: {str(fresh.root / 'Snakefile')!r}\n"
            f"    config: {CONFIG | {'run': run, 'compute': {'device': device}}}\n"
            f"use rule * from {run} as {run}_*\n"
            for run, device in {"first": "cpu", "second": "cuda"}.items()
        )
    )
    targets = (
        "other.mine",
        *(f"results/{run}/tables/drift.parquet" for run in ("first", "second")),
    )
    lacks = "config key compute.device: found cuda"
    for number in (2, 3):
        said = elsewhere.succeed("-n", *targets[:number], CUDA_VISIBLE_DEVICES="").stderr
        assert said.count(lacks) == number - 2


def import_as_module(elsewhere, snakefile):
    """Let another workflow import this one, with a config of its own."""
    (elsewhere.root / "Snakefile").write_text(
        f"module twoscale:\n    snakefile: {snakefile}\n    config: {CONFIG}\n\n"
        "use rule * from twoscale as imported_*\n"
    )


def imported_plan(project):
    """The plan of an imported workflow, with rule names as in the workflow itself."""
    plan = project.plan(*(f"imported_{target}" for target in FIGURES_AND_MORE))
    counts = {rule.removeprefix("imported_"): count for rule, count in plan.items()}
    return {rule: count for rule, count in counts.items() if rule not in TARGETS}


def test_a_module_from_a_git_repository_plans_the_same_jobs_and_makes_files(
    fresh, planned, elsewhere, tmp_path_factory, monkeypatch
):
    fresh.configure(
        preset="paper"
    )  # the config of the importing workflow replaces that of the checkout
    for name, value in publish(fresh, tmp_path_factory.mktemp("hub")).items():
        monkeypatch.setenv(name, value)
    import_as_module(elsewhere, 'github("someone/twoscale", path="workflow/Snakefile", tag="v1")')
    assert imported_plan(elsewhere) == planned
    elsewhere.succeed(TOKENS)
    assert (elsewhere.root / "results/tiny/data/train.bin").stat().st_size > 0
    kept = (elsewhere.root / ".snakemake/twoscale").iterdir()
    (clone,) = (folder for folder in kept if folder.name != "jobs")
    assert (clone / "src/twoscale/__init__.py").exists()


def test_another_folder_and_the_snakefile_of_the_catalog_plan_the_same_jobs(
    fresh, planned, elsewhere
):
    snakefile = ("-s", str(fresh.root / "Snakefile"))
    assert elsewhere.plan(*FIGURES_AND_MORE, *snakefile) == planned
    elsewhere.succeed(TOKENS, *snakefile)
    assert (elsewhere.root / "results/tiny/data/train.bin").stat().st_size > 0
    assert not (fresh.root / "results").exists()
    assert fresh.plan(*FIGURES_AND_MORE, "-s", "workflow/Snakefile") == planned
    assert "plot_fig5" in fresh.plan("-s", "workflow/Snakefile")  # its default target
