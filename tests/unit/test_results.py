"""docs/results.md: generated from the tables in docs, with the paper's number, ours, its scale and
a command.
"""

import json
import re
import shlex
import shutil
from functools import cache

import numpy as np
import pandas as pd
import pytest
from docs import results as pages
from docs import trend, which_exit

from twoscale import config, tables
from twoscale.claims import verdicts as claims
from twoscale.claims.exits import AT_EQUAL_QUALITY, AT_PAPERS
from twoscale.claims.geometry import AFTER_WARMUP, SINCE_UNTRAINED
from twoscale.claims.seeds import MEAN
from twoscale.claims.words import (
    BOUND,
    FAILS,
    HOLDS,
    OPEN,
    SMALL_SCALE,
    depends_on,
    with_trend,
)
from twoscale.report.render import number

DOCS = config.PROJECT / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.fixture
def docs(tmp_path):
    """A folder with the tables of the demo."""
    shutil.copytree(DOCS / "demo-release", tmp_path / "demo-release")
    return tmp_path


@cache
def judged():
    """The table "claims" of each run, by the present rules."""
    return pages.judged(DOCS)


def demo():
    return judged()["demo"].copy()


def with_costs(docs):
    """The release as one with costs, so that its times are shown."""
    manifest = docs / "demo-release" / "manifest.json"
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    facts["files"]["demo/tables/exit_costs.parquet"] = {"bytes": 1, "sha256": "0"}
    manifest.write_text(json.dumps(facts), encoding="utf-8")


def section(page, claim):
    return page.split(f"\n## Claim {claim}\n")[1].split("\n## ")[0]


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_page_is_that_of_the_tables():
    assert pages.results(DOCS, judged()) == PAGE, "run make generated"


def test_the_trend_towards_the_paper_ends_with_the_numbers_of_the_claims():
    """Its table follows the tables in docs; the last checkpoint has what the claims are judged on."""
    table = trend.trend(DOCS)
    kept = pd.read_parquet(DOCS / trend.TABLE)
    pd.testing.assert_frame_equal(table, kept, check_dtype=False)
    last = table[table["iteration"] == table.groupby("run")["iteration"].transform("max")]
    compared = 0
    for run, name in (("demo", "demo"), ("half-hour", "GPU")):
        of_claims = judged()[run].set_index(["claim", "quantity", "scope"])["value"]
        for decided in trend.NUMBERS:
            for row in last[(last["run"] == name) & (last["number"] == decided.name)].itertuples():
                expected = of_claims.get((decided.claim, decided.quantity, row.scope), np.nan)
                if not np.isnan(expected):
                    assert row.value == pytest.approx(expected, rel=1e-6)
                    compared += 1
    assert compared > 15


def test_the_trend_is_drawn_with_the_papers_range():
    figure = trend.draw(pd.read_parquet(DOCS / trend.TABLE), 2.4)
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.split(":")[0] for title in titles] == [f"claim {n}" for n in (1, 4, 6, 13)]
    (band,) = figure.axes[1].patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((0.5, 0.65))


def test_which_exit_is_that_of_the_kept_tables():
    for name, text in which_exit.pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, "run make generated"


def test_a_number_of_the_page_follows_its_table(docs):
    frame = demo()
    row = (frame["claim"] == 7) & (frame["bounds"] != "") & (frame["scope"] != claims.ALL)
    frame.loc[row, ["value", "low", "high", "verdict"]] = [0.5, 0.4, 0.6, HOLDS]

    def first_number():
        lines = section(pages.results(docs, {"demo": frame}), 7).splitlines()
        return next(cells(line) for line in lines if line.startswith("| acceleration"))[1:]

    before = first_number()
    frame.loc[row, ["value", "low", "high"]] = [1.2413793, 1.0, 1.5]
    after = first_number()
    assert before[:2] == after[:2]
    assert before[1] == "0.621"
    assert after[2].startswith("1.24 [1, 1.5] ✓; 2 times the paper's")


@pytest.mark.parametrize("command", sorted({paper.command for paper in pages.PAPER.values()}))
def test_the_commands_name_configs_that_can_be_planned(command):
    program, option, *entries = shlex.split(command)
    assert (program, option) == ("snakemake", "--config")
    (run,) = config.runs(config.user_config([], entries)).values()
    changed = (
        run.exits.quality_tokens == 12_288,
        run.tokenizer.name == "gpt2",
    )
    assert any(changed)
    assert max(run.exits.quality_tokens, run.trajectories.tokens) <= run.data.held_out_tokens


@pytest.mark.parametrize(
    ("reported", "value", "text"),
    [
        ((0.5, 0.65), 0.65, "in the paper's range"),
        ((0.5, 0.65), 0.75, "0.1 above it"),
        ((0.5, 0.5), float("nan"), ""),
    ],
)
def test_a_number_is_compared_with_that_of_the_paper(reported, value, text):
    assert pages.Paper("", reported).compared(value) == text


def test_every_judged_number_is_shown_with_its_mark_and_the_untrained_model(docs):
    """Numbers that disagree with the verdict of their claim were left out."""
    found = next(pages.columns(docs, {"demo": demo()}))
    page = pages.results(docs, {"demo": demo()})
    rows = [cells(line) for line in section(page, 4).splitlines() if line.startswith("|")][2:-1]
    assert [row[0] for row in rows] == [group for group in ("4", "5–6", "7") for _ in range(2)]
    assert [bool(re.search("[✓✗?]", row[3])) for row in rows] == [True, False] * 3
    assert [scope for _, scope in found.keys(6)] == [
        f"{boundary}, {found.reference_state}"
        for boundary in ("4->5-6", "5-6->7")
        for _ in range(2)
    ]


def test_a_run_that_was_judged_by_other_statements_says_so(docs):
    assert "| rules of judging |  | present |" in pages.results(docs, {"demo": demo()})
    other = demo().assign(statement="Another.")
    assert "| rules of judging |  | earlier |" in pages.results(docs, {"demo": other})


def test_a_release_is_judged_again_unless_tables_are_missing(docs):
    """By the present rules, whatever verdicts were released."""
    folder = docs / "demo-release" / "demo" / "tables"
    released = tables.read("claims", folder / "claims.parquet").assign(verdict="earlier")
    tables.write("claims", released, folder / "claims.parquet")
    (folder / "drift_sequences.parquet").rename(folder / "elsewhere.parquet")
    kept = pages.judged(docs)["demo"]
    times = kept["claim"].isin([claim.number for claim in claims.CLAIMS if claim.timed])
    assert set(kept.loc[~times, "verdict"]) == {"earlier"}
    assert "earlier" not in set(demo()["verdict"])


def test_a_claim_that_fails_reads_not_at_this_scale_in_cells_and_counts(docs):
    frame = demo()
    whole = frame["scope"] == claims.ALL
    frame.loc[whole, ["verdict", "scale"]] = [FAILS, with_trend(SMALL_SCALE, True)]
    page = pages.results(docs, {"demo": frame})
    words = "not at this scale; moves towards the paper"
    assert cells(section(page, 4).splitlines()[-1])[-1] == f"**{words}**"
    assert f"| Angles settle at 0.5–0.65 | {words} in 1 of 1 |" in page
    assert "16 fail in all at this scale" in page
    assert FAILS not in page.split("## Scope")[0].split("## Verdicts")[1]


def test_runs_over_seeds_have_a_column_with_the_mean_and_no_verdict(docs):
    with_costs(docs)
    one = demo()
    seeds = pd.concat([one.assign(seed=seed) for seed in ("1", "2", MEAN)], ignore_index=True)
    seeds.loc[
        (seeds["seed"] == MEAN) & (seeds["claim"] == 4) & (seeds["bounds"] != ""), "value"
    ] = 0.6
    (docs / "seeds").mkdir()
    seeds.to_parquet(docs / "seeds" / "demo.parquet")
    page = pages.results(docs, {"demo": one})
    header, _, row, *_ = (
        cells(line) for line in section(page, 4).splitlines() if line.startswith("|")
    )
    assert header == [
        "scope",
        "number",
        "the paper",
        "demo, small scale",
        "demo, 2 seeds, small scale",
    ]
    assert row[4].startswith(number(0.6))
    assert "in the paper's range" in row[4]
    assert cells(section(page, 4).splitlines()[-1])[3:] == [f"**{OPEN}**", ""]
    assert "seeds" not in page.split("## Verdicts")[1].split("The models are")[0]
    assert "| seeds | 1 | 1 | 2 |" in page


def test_a_run_under_several_seeds_counts_as_one_model():
    rows = [cells(line) for line in PAGE.split("## Verdicts")[1].splitlines()[4:20]]
    counted = {row[0].split("]")[0][1:]: row[2] for row in rows}
    assert counted["1"] == f"{HOLDS} in 3 of 3"  # demo, FineWeb, GPU
    # FineWeb saves less than the stricter bound asks, and GPU has no costs measured in pairs
    bound = depends_on([BOUND])
    assert counted["7"] == f"{HOLDS} in 1 of 3, {bound} in 1 of 3, {OPEN} in 1 of 3"


def test_verdicts_under_all_readings_are_in_one_table(docs):
    page = pages.results(docs, {"demo": demo()})
    lines = page.split("### Other readings")[1].split("\n## ")[0].splitlines()
    rows = [cells(line) for line in lines if line.startswith("|")][2:]
    by_reading = {(row[0].split("]")[0][1:], row[1]): row[2] for row in rows}
    assert by_reading["12", SINCE_UNTRAINED.name] == HOLDS
    assert by_reading["12", AFTER_WARMUP.name] == OPEN
    assert by_reading["11", AT_PAPERS.name] == "not at this scale"
    assert by_reading["11", AT_EQUAL_QUALITY.name] == HOLDS


def test_claims_that_are_judged_again_are_compared_with_the_first_page(tmp_path, capsys):
    """What `make check` does after it has drawn and judged the released tables."""
    table = tmp_path / "released/demo/tables/claims.parquet"
    table.parent.mkdir(parents=True)
    frame = demo()
    tables.write("claims", frame, table)
    assert pages.check(tmp_path, judged())
    frame.loc[(frame["claim"] == 1) & (frame["scope"] == claims.ALL), "verdict"] = FAILS
    tables.write("claims", frame, table)
    assert not pages.check(tmp_path, judged())
    assert "docs/results.md: its verdicts and numbers differ" in capsys.readouterr().out
