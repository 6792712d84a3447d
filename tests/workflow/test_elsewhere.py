"""The workflow from another folder, and as a module of another workflow, from a folder or from a
Git repository.
"""

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
