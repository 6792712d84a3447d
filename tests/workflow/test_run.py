"""The tiny workflow from text to figures."""

import json
import re
import shutil

import pandas as pd
import pytest

from twoscale.report import pages

FIGURES = [f"fig{number}" for number in range(1, 6)]
OTHERS = [f"plot_{name}" for name in FIGURES if name != "fig4"]


def test_one_call_draws_the_five_figures(finished):
    for name in FIGURES:
        assert (finished.root / f"results/{name}.pdf").read_bytes().startswith(b"%PDF")


def test_tables_contain_every_checkpoint_group_and_criterion(finished):
    tables = finished.root / "results/tiny/tables"
    loops = pd.read_parquet(tables / "loop_metrics.parquet")
    assert sorted(loops["iteration"].unique()) == [0, 10, 20]
    assert set(loops["group"]) == {"2", "3"}
    quality = pd.read_parquet(tables / "exit_quality.parquet")
    assert set(quality["criterion"]) == {"fixed", "step_norm", "kl", "acceleration"}


def test_one_call_judges_the_claims(finished):
    """Six loop steps are too few for late angles (claim 4)."""
    claims = pd.read_parquet(finished.root / "results/tiny/tables/claims.parquet")
    verdicts = claims[claims["scope"] == "all"].set_index("claim")["verdict"]
    assert list(verdicts.index) == list(range(1, 16))
    assert verdicts[4] == "not asked"
    assert verdicts[14] != "not asked"
    page = (finished.root / "results/claims.md").read_text()
    assert "**tiny**" in page
    assert "0 (untrained), 10, 20" in page


def test_only_the_last_optimizer_state_stays(finished):
    states = sorted(path.name for path in (finished.root / "results/tiny/checkpoints").glob("*.optimizer.safetensors"))
    assert states == ["iteration_000020.optimizer.safetensors"]


def test_segments_append_their_metrics_to_one_file(finished):
    folder = finished.root / "results/tiny/training"
    lines = pd.read_csv(folder / "metrics.csv").set_index("iteration")
    table = pd.concat(map(pd.read_parquet, sorted(folder.glob("iteration_??????.parquet")))).set_index("iteration")
    assert lines.index.tolist() == [5, 10, 15, 20]
    assert lines["loss"].tolist() == pytest.approx(table["loss"][lines.index].tolist(), rel=1e-5)


def test_one_figure_plans_no_other(fresh):
    planned = fresh.plan("results/fig4.pdf")
    assert "plot_fig4" in planned
    assert not {*OTHERS, "extract_trajectories", "aggregate_metrics"} & set(planned)


@pytest.mark.runs
def test_results_show_the_figures_of_the_selected_run_without_drawing_them_again(editable):
    """Copies of its files take the place of another run's, which keeps its own, and come back."""
    results, copies = editable.root / "results", {"show_figure": 5, "show_page": 1}
    mine = (results / "fig1.pdf").read_bytes()
    assert b"run tiny" in (results / "fig1.svg").read_bytes()
    shutil.copytree(results / "tiny", results / "other")  # times of files stay: a finished run
    for name in ("fig1.pdf", "fig1.svg", "claims.md"):
        (results / "other/figures" / name).write_bytes(b"of the other run")
    editable.configure(run="other")
    assert editable.plan(hidden={"all"}) == copies
    editable.succeed()
    assert {(results / name).read_bytes() for name in ("fig1.pdf", "fig1.svg", "claims.md")} == {b"of the other run"}
    assert (results / "tiny/figures/fig1.pdf").read_bytes() == mine
    editable.configure()
    assert editable.plan(hidden={"all"}) == copies
    editable.succeed()
    assert (results / "fig1.pdf").read_bytes() == mine
    assert editable.plan(hidden=()) == {}


def test_a_figure_that_the_run_no_longer_has_is_refused_even_if_it_was_drawn(editable):
    for folder in ("results", "results/tiny/figures"):
        for suffix in ("pdf", "svg"):
            shutil.copy(editable.root / f"results/fig1.{suffix}", editable.root / folder / f"seeds.{suffix}")
    done = editable.run("-n", "results/seeds.pdf")
    assert "\nresults/seeds.pdf: run tiny has one seed, expected further ones" in done.stdout + done.stderr


def test_a_finished_call_says_what_was_found_and_where_it_is(finished):
    told = (finished.root.parent / "finished.done").read_text()
    counts = re.search(r"run tiny, small scale: of the paper's 15 claims (.*) \(results/claims\.md\)", told)
    assert sum(map(int, re.findall(r"\d+", counts[1]))) == 15
    assert not re.search(r"([02-9]|1\d) (holds|does)", counts[1])
    assert f"figures: {', '.join(f'results/{name}.pdf' for name in FIGURES)}\n" in told
    assert "generate.py --run tiny" in told


def test_loss_and_time_left_are_shown_at_the_end_of_each_segment_however_short(finished):
    told = (finished.root.parent / "finished.done").read_text()
    assert re.findall(r"^tiny: iteration (\d+) of \1, loss \d\.\d{3}, [\d:]+ in the run$", told, re.M) == ["10", "20"]


def test_a_model_without_groups_has_no_figures_of_the_paper(fresh):
    fresh.configure(model={"groups": []})
    done = fresh.run("-n")
    assert done.returncode != 0
    assert "\nrun tiny: found no looped groups (model.groups: []), expected at least one for the " in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    fresh.configure(model={"groups": [[2]]})
    planned = fresh.plan()
    assert {"plot_fig2", "plot_fig3"} <= set(planned)


def test_the_runtimes_are_of_rules_that_exist(finished):
    rules = [line.split()[0] for line in finished.run("--list-rules").stdout.splitlines()]
    assert {*pages.runtimes((finished.root / "results/tiny/benchmarks").glob("*.tsv"))["rule"]} <= {*rules}


def embedded(page: str, name: str):
    """The value in the script with this id of Snakemake's report."""
    return json.loads(re.search(rf'<script id="{name}">\s*var \w+ = (.*);\s*</script>', page).group(1))
