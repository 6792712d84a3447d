"""The tiny workflow from text to figures."""

import json
import re
import shutil

import pandas as pd
import pytest

from tests.workflow.conftest import COPIES, ROOT, TARGETS
from twoscale import tables
from twoscale.figures.catalogue import figures
from twoscale.report import release

FIGURES = [f"fig{number}" for number in range(1, 6)]


def test_one_call_draws_five_figures_and_judges_the_claims_from_tables_of_everything(finished):
    """Six loop steps are too few for late angles (claim 4)."""
    folder = finished.root / "results/tiny/tables"
    for name in FIGURES:
        assert (finished.root / f"results/{name}.pdf").read_bytes().startswith(b"%PDF")
    loops, quality = (
        pd.read_parquet(folder / f"{name}.parquet") for name in ("loop_metrics", "exit_quality")
    )
    assert sorted(loops["iteration"].unique()) == [0, 10, 20]
    assert set(loops["group"]) == {"2", "3"}
    assert set(quality["criterion"]) == {"fixed", "step_norm", "kl", "acceleration"}
    claims = pd.read_parquet(folder / "claims.parquet")
    verdicts = claims[claims["scope"] == "all"].set_index("claim")["verdict"]
    assert list(verdicts.index) == list(range(1, 17))
    assert verdicts[4] == "not asked"
    assert verdicts[14] != "not asked"
    page = (finished.root / "results/claims.md").read_text()
    assert "**tiny**" in page
    assert "0 (untrained), 10, 20" in page
    (state,) = (finished.root / "results/tiny/checkpoints").glob("*.optimizer.safetensors")
    assert state.name == "iteration_000020.optimizer.safetensors"  # the last one stays
    assert finished.plan() == {}


def test_the_plan_says_of_the_same_claims_as_the_verdicts_that_the_run_is_too_small(finished):
    plan = finished.python("scripts/plan.py").stdout
    planned = re.findall(r"^  claim (\d+) \(.+?\): (.+)\.$", plan, re.MULTILINE)
    claims = pd.read_parquet(finished.root / "results/tiny/tables/claims.parquet")
    whole = claims[claims["scope"] == "all"]
    too_small = (whole["verdict"] == "not asked") | whole["reason"].str.contains(
        "expected at least"
    )
    said = [
        (str(row.claim), f"{row.verdict}: {row.reason}") for row in whole[too_small].itertuples()
    ]
    assert said == planned
    assert len(said) == 6
    # no norm falls to a tenth within the 6 loop steps, so there is no rate to compare
    (row,) = whole[whole["claim"] == 2].itertuples()
    assert row.verdict == "cannot be judged"
    assert "no norm is below a tenth within 5 loop steps" in row.reason


def test_the_csv_of_training_has_the_numbers_of_its_tables(finished):
    """Of two segments, every fifth iteration, which is also when the held-out loss is measured."""
    folder = finished.root / "results/tiny/training"
    names = [f"iteration_{until:06d}" for until in (10, 20)]
    rows, loops = (
        pd.concat([tables.read(table, folder / f"{name}{ending}.parquet") for name in names])
        for table, ending in (("training", ""), ("training_loops", ".loops"))
    )
    wide = loops.pivot(index="iteration", columns="group", values="loops").add_prefix("loops_")
    expected = rows.set_index("iteration").join(wide).loc[[5, 10, 15, 20]].reset_index()
    found = pd.read_csv(folder / "metrics.csv")[expected.columns]
    pd.testing.assert_frame_equal(found.astype(float), expected.astype(float), rtol=1e-5)


@pytest.mark.runs
def test_results_show_the_figures_of_the_selected_run_without_drawing_them_again(editable):
    """Copies of its files take the place of another run's, which keeps its own, and come back."""
    results, copies = editable.root / "results", {"show_figure": 5, "show_page": 2}
    mine = (results / "fig1.pdf").read_bytes()
    assert b"run tiny" in (results / "fig1.svg").read_bytes()
    shutil.copytree(results / "tiny", results / "other")  # times of files stay: a finished run
    for name in ("fig1.pdf", "fig1.svg", "claims.md", "loops.html"):
        (results / "other/figures" / name).write_bytes(b"of the other run")
    editable.configure(run="other")
    assert editable.plan(hidden={"all"}) == copies
    editable.succeed()
    assert {
        (results / name).read_bytes()
        for name in ("fig1.pdf", "fig1.svg", "claims.md", "loops.html")
    } == {b"of the other run"}
    assert (results / "tiny/figures/fig1.pdf").read_bytes() == mine
    editable.configure()
    assert editable.plan(hidden={"all"}) == copies


@pytest.mark.runs
def test_a_call_after_which_figures_of_two_runs_are_shown_names_them(editable):
    results, others = editable.root / "results", ("--config", "run=other")
    shutil.copytree(results / "tiny", results / "other")
    for path in (results / "other/figures").iterdir():
        path.write_bytes(path.read_bytes() + b"\n")
    said = editable.succeed("results/fig2.pdf", *others).stderr
    of_tiny = ", ".join(["claims.md", *(f"{name}.pdf" for name in FIGURES if name != "fig2")])
    assert f"results/ shows several runs: {of_tiny}, loops.html of tiny; fig2.pdf of other" in said
    said = editable.succeed(*others).stderr
    assert "several runs" not in said
    assert "make report OPTIONS='--config run=other' " in said
    assert "snakemake --cores all supplementary --config run=other " in said


def test_a_finished_call_says_what_was_found_and_where_it_is(finished):
    told = (finished.root.parent / "finished.done").read_text()
    claims = re.search(
        r"run tiny: the paper's claims in this run, one seed, small scale: (.*) \(results/claims",
        told,
    )
    assert sorted(map(int, re.findall(r"\d+", claims[1]))) == [*range(1, 17)]
    assert "does not hold" not in claims[1]
    assert f"figures: {', '.join(f'results/{name}.pdf' for name in FIGURES)}\n" in told
    assert "generate.py --run tiny" in told
    assert "make report  " in told
    assert "several runs" not in told


def test_loss_and_time_left_are_shown_at_the_end_of_each_segment_however_short(finished):
    told = (finished.root.parent / "finished.done").read_text()
    assert re.findall(
        r"^tiny: iteration (\d+) of 20, loss \d\.\d{3}, [\d:]+ left$", told, re.M
    ) == ["10", "20"]


def test_every_rule_says_what_it_makes_and_every_figure_has_a_module_and_a_caption(finished):
    lines = finished.succeed("--list-rules").stdout.splitlines()
    assert [
        line for line in lines if not re.fullmatch(r"\w+ \((Target|Figure|Job|Base): .+\)", line)
    ] == []
    assert {line.split()[0] for line in lines if " (Target: " in line} == TARGETS - COPIES
    rules = {line.split()[0] for line in lines}
    assert {rule for rule in rules if rule.startswith("plot_")} == {
        "plot_loops",
        *(f"plot_{figure.name}" for figure in figures()),
    }
    assert {
        *release.runtimes((finished.root / "results/tiny/benchmarks").glob("*.tsv"))["rule"]
    } <= rules
    for figure in figures():
        assert (ROOT / "src" / f"{figure.module.replace('.', '/')}.py").exists()
        assert (ROOT / figure.caption_file).exists()


def embedded(page: str, name: str):
    """The value in the script with this id of Snakemake's report."""
    return json.loads(
        re.search(rf'<script id="{name}">\s*var \w+ = (.*);\s*</script>', page).group(1)
    )
