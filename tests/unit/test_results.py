"""docs/results.md: generated from the tables in docs, with the paper's number, ours, its scale and
a command.
"""

import json
import re
import shlex
import shutil

import pandas as pd
import pytest
from docs import results as pages
from docs import which_exit

from twoscale import config, tables
from twoscale.claims import verdicts as claims
from twoscale.claims.evidence import FAILS, HOLDS, OPEN
from twoscale.claims.seeds import MEAN, PER_RUN
from twoscale.report.render import number

DOCS = config.PROJECT / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
DEMO = DOCS / "demo-release" / "demo" / "tables" / "claims.parquet"


@pytest.fixture
def docs(tmp_path):
    """A folder with the tables of the demo."""
    shutil.copytree(DOCS / "demo-release", tmp_path / "demo-release")
    return tmp_path


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
    assert pages.results(DOCS) == PAGE, "run make generated"


def test_which_exit_is_that_of_the_kept_tables():
    for name, text in which_exit.pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, "run make generated"


def test_a_number_of_the_page_follows_its_table(docs):
    with_costs(docs)
    before = cells(section(pages.results(docs), 7).splitlines()[-4])[1:]
    table = docs / "demo-release" / "demo" / "tables" / "claims.parquet"
    frame = tables.read("claims", table)
    row = (frame["claim"] == 7) & (frame["bounds"] != "") & (frame["scope"] != claims.ALL)
    frame.loc[row, ["value", "low", "high"]] = [1.2413793, 1.0, 1.5]
    tables.write("claims", frame, table)
    after = cells(section(pages.results(docs), 7).splitlines()[-4])[1:]
    assert before[:2] == after[:2]
    assert before[1] == "0.621"
    assert after[2].startswith("1.24 [1, 1.5] ✓; 2 times the paper's;")


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
    assert pages.Paper("", "", reported).compared(value) == text


def test_every_judged_number_is_shown_with_its_mark_and_the_untrained_model(docs):
    """Numbers that disagree with the verdict of their claim were left out."""
    found = next(pages.columns(docs))
    rows = [
        cells(line) for line in section(pages.results(docs), 4).splitlines() if line.startswith("|")
    ][2:-1]
    assert [row[0] for row in rows] == [group for group in ("4", "5–6", "7") for _ in range(2)]
    assert [bool(re.search("[✓✗?]", row[3])) for row in rows] == [True, False] * 3
    assert [scope for _, scope in found.keys(6)] == [
        f"{boundary}, {found.reference_state}"
        for boundary in ("4->5-6", "5-6->7")
        for _ in range(2)
    ]


def test_a_run_that_was_judged_by_other_statements_says_so(docs):
    table = docs / "demo-release" / "demo" / "tables" / "claims.parquet"
    frame = tables.read("claims", table)
    statements = {claim.number: claim.statement for claim in claims.CLAIMS}
    tables.write("claims", frame.assign(statement=frame["claim"].map(statements)), table)
    assert "| rules of judging |  | present |" in pages.results(docs)
    tables.write("claims", frame.assign(statement="Another."), table)
    assert "| rules of judging |  | earlier |" in pages.results(docs)


def test_runs_over_seeds_have_a_column_with_the_mean_and_counts_for_times(docs):
    with_costs(docs)
    one = tables.read("claims", DEMO)
    seeds = pd.concat([one.assign(seed=seed) for seed in ("1", "2", MEAN)], ignore_index=True)
    seeds.loc[
        (seeds["seed"] == MEAN) & (seeds["claim"] == 4) & (seeds["bounds"] != ""), "value"
    ] = 0.6
    of_times = (seeds["claim"] == 7) & (seeds["scope"] == claims.ALL)
    seeds.loc[of_times, "verdict"] = [HOLDS, HOLDS, PER_RUN]
    (docs / "seeds").mkdir()
    seeds.to_parquet(docs / "seeds" / "demo.parquet")
    page = pages.results(docs)
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
    assert cells(section(page, 7).splitlines()[-3])[-1] == "**holds: 2**"
    assert "| seeds | 1 | 1 | 2 |" in page


def test_each_seed_counts_as_one_model_and_the_released_run_is_one_of_them():
    rows = [cells(line) for line in PAGE.split("## Verdicts")[1].splitlines()[4:19]]
    counted = {row[0].split("]")[0][1:]: row[2] for row in rows}
    assert counted["1"] == f"{HOLDS} in 5 of 5"  # three seeds, FineWeb, GPU
    assert counted["5"] == f"{FAILS} in 4 of 5, {OPEN} in 1 of 5"


def test_times_of_a_run_without_costs_cannot_be_judged(docs):
    """Earlier releases have measured times only, and verdicts on them."""
    manifest = docs / "demo-release" / "manifest.json"
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    facts["files"].pop("demo/tables/exit_costs.parquet", None)
    manifest.write_text(json.dumps(facts), encoding="utf-8")
    frame = tables.read("claims", DEMO)
    tables.write(
        "claims", frame.assign(verdict=HOLDS), docs / "demo-release/demo/tables/claims.parquet"
    )
    found = next(pages.columns(docs))
    verdicts = {claim.number: found.verdict(claim.number) for claim in claims.CLAIMS}
    assert [number for number, verdict in verdicts.items() if verdict == OPEN] == [7, 10, 11]
    assert found.keys(7) == []


def test_claims_that_are_judged_again_are_compared_with_the_first_page(tmp_path, capsys):
    """What `make check` does after it has drawn and judged the released tables."""
    table = tmp_path / "released/demo/tables/claims.parquet"
    table.parent.mkdir(parents=True)
    shutil.copy(DEMO, table)
    assert pages.check(tmp_path)
    frame = tables.read("claims", table)
    frame.loc[(frame["claim"] == 1) & (frame["scope"] == claims.ALL), "verdict"] = FAILS
    tables.write("claims", frame, table)
    assert not pages.check(tmp_path)
    assert "docs/results.md: its verdicts and numbers differ" in capsys.readouterr().out
