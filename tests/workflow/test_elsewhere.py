"""The workflow from another folder, and as a module of another workflow, from a folder or from a Git repository."""

import re

import pytest

from tests.workflow.conftest import COPIES, ROOT, TARGETS, Project, publish
from twoscale.figures.catalogue import figures

CONFIG = {"preset": "tiny", "seed": 5}
FIGURES_AND_MORE = ("all", "supplementary")


@pytest.fixture
def elsewhere(tmp_path_factory):
    """A folder without this workflow."""
    return Project(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def planned(fresh):
    """The jobs of the workflow in its own folder."""
    fresh.configure(**CONFIG)
    return fresh.plan(*FIGURES_AND_MORE)


def imported_plan(project):
    """The plan of an imported workflow, with rule names as in the workflow itself."""
    plan = project.plan(*(f"imported_{target}" for target in FIGURES_AND_MORE))
    counts = {rule.removeprefix("imported_"): count for rule, count in plan.items()}
    return {rule: count for rule, count in counts.items() if rule not in TARGETS}


@pytest.mark.runs
def test_another_folder_plans_the_same_jobs_and_gets_the_results(fresh, planned, elsewhere):
    snakefile = ("-s", str(fresh.root / "Snakefile"))
    assert elsewhere.plan(*FIGURES_AND_MORE, *snakefile) == planned
    elsewhere.succeed("results/tiny/data/tokens.json", *snakefile)
    assert (elsewhere.root / "results/tiny/data/train.bin").stat().st_size > 0
    assert not (fresh.root / "results").exists()


def import_as_module(project, elsewhere, config=""):
    (elsewhere.root / "Snakefile").write_text(
        f"module twoscale:\n    snakefile: {str(project.root / 'Snakefile')!r}\n{config}\n"
        "use rule * from twoscale as imported_*\n"
    )


def test_a_module_with_a_config_plans_the_same_jobs(fresh, planned, elsewhere):
    fresh.configure(preset="paper")  # the config of the importing workflow replaces that of the checkout
    import_as_module(fresh, elsewhere, f"    config: {CONFIG}\n")
    assert imported_plan(elsewhere) == planned


@pytest.mark.runs
def test_a_module_without_a_config_has_that_of_its_checkout_and_makes_files(fresh, planned, elsewhere):
    import_as_module(fresh, elsewhere)
    assert imported_plan(elsewhere) == planned
    elsewhere.succeed("results/tiny/checkpoints/iteration_000000.safetensors")
    assert (elsewhere.root / "results/tiny/checkpoints/iteration_000000.safetensors").exists()


@pytest.mark.runs
def test_a_module_from_a_git_repository_plans_the_same_jobs_and_makes_files(
    fresh, planned, elsewhere, tmp_path_factory, monkeypatch
):
    for name, value in publish(fresh, tmp_path_factory.mktemp("hub")).items():
        monkeypatch.setenv(name, value)
    (elsewhere.root / "Snakefile").write_text(
        'module twoscale:\n    snakefile: github("someone/twoscale", path="workflow/Snakefile", tag="v1")\n'
        f"    config: {CONFIG}\n\nuse rule * from twoscale as imported_*\n"
    )
    assert imported_plan(elsewhere) == planned
    elsewhere.succeed("results/tiny/data/tokens.json")
    assert (elsewhere.root / "results/tiny/data/train.bin").stat().st_size > 0
    (clone,) = (elsewhere.root / ".snakemake/twoscale").iterdir()
    assert (clone / "src/twoscale/__init__.py").exists()


@pytest.mark.runs
def test_the_snakefile_of_the_catalog_plans_the_same_jobs_and_repeats_none(fresh, planned):
    catalog = ("-s", "workflow/Snakefile")
    assert fresh.plan(*FIGURES_AND_MORE, *catalog) == planned
    assert "plot_fig5" in fresh.plan(*catalog)  # its default target
    fresh.succeed("results/tiny/data/tokens.json", *catalog)
    assert fresh.plan("results/tiny/data/tokens.json") == {}


def test_a_missing_image_of_the_container_is_reported_before_any_job(fresh):
    done = fresh.run("-n", "--software-deployment-method", "apptainer")
    assert done.returncode == 1
    assert "envs/twoscale.sif: found no image, expected the one that" in done.stdout + done.stderr


def test_every_rule_says_what_it_makes_and_each_that_plots_has_a_row_a_module_a_caption_and_a_category(fresh):
    lines = fresh.succeed("--list-rules").stdout.splitlines()
    undescribed = [line for line in lines if not re.fullmatch(r"\w+ \((Target|Figure|Job): .+\)", line)]
    assert undescribed == []
    assert {line.split()[0] for line in lines if " (Target: " in line} == TARGETS - COPIES - {"default"}
    rules = {line.split()[0] for line in lines}
    assert {rule for rule in rules if rule.startswith("plot_")} == {f"plot_{figure.name}" for figure in figures()}
    for figure in figures():
        assert (ROOT / "src" / f"{figure.module.replace('.', '/')}.py").exists()
        assert (ROOT / figure.caption_file).exists()
        assert figure.category in ("Figures of the paper", "Supplementary figures")
