"""The page to explore: made from the last checkpoint by its own target, and part of the report."""

import json
import re

import pytest


@pytest.mark.runs
def test_the_page_shows_the_sequence_of_the_config_and_nothing_is_trained(editable):
    editable.configure(explore={"sequence": 1, "tokens": 8})
    assert editable.plan("explore") == {"extract_explore": 1, "write_explore_page": 1}
    editable.succeed("explore")
    assert editable.plan("explore") == editable.plan() == {}
    page = (editable.root / "results/explore.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    assert (data["run"], len(data["tokens"])) == ("tiny", 8)
    assert [point["name"] for point in data["exits"]] == ["acceleration"] * 2 + ["fixed"] + ["KL"] * 2 + [
        "step norm"
    ] * 2
    assert [site["k"] for site in data["sites"] if site.get("group") == "3"] == [*range(7)]  # exits.max_loops


def test_the_page_is_part_of_the_report_and_not_of_all(finished):
    assert finished.plan("report_pages")["write_explore_page"] == 1
    assert "write_explore_page" not in finished.plan()


def test_a_model_without_loops_has_no_page(fresh):
    fresh.configure(model={"groups": []})
    done = fresh.run("-n", "explore")
    assert done.returncode != 0
    assert "results/explore.html: run tiny has no looped groups, expected at least 1." in done.stdout + done.stderr
