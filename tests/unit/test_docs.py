"""README and docs/: every link leads to a file and a heading that exist."""

import re
import shlex

import pandas as pd
from docs import readings

from twoscale import config
from twoscale.config import PROJECT
from twoscale.figures.catalogue import figures

PAGES = [*PROJECT.glob("*.md"), *sorted((PROJECT / "docs").rglob("*.md"))]
# Written by the code, or a list of changes: not counted as prose.
GENERATED = {
    *(
        "CHANGELOG.md",
        "benchmarks.md",
        "config.md",
        "jacobians.md",
        "results.md",
        "seeds.md",
        "tables.md",
        "which-exit.md",
    ),
    "zoo.md",
}
PAGE_WORDS, ALL_WORDS = 2500, 24_050
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """The anchors of the headings of a page, as GitHub and MkDocs derive them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


def broken(page):
    """Links of a page to files and headings that do not exist."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if path.startswith(("http://", "https://")):
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (
            anchor and found.suffix == ".md" and anchor not in anchors(found)
        ):
            yield f"{page.relative_to(PROJECT)}: {target}"


def test_every_link_leads_somewhere():
    assert [link for page in PAGES for link in broken(page)] == []


def test_the_first_page_says_of_the_claims_what_the_results_say():
    readme, results = (
        " ".join((PROJECT / name).read_text(encoding="utf-8").split())
        for name in ("README.md", "docs/results.md")
    )
    told = (
        r"Of (\d+) claims, (\d+) hold in all (\d+) models \(([\d, ]+)\).*? (\d+) fail in all"
        r" at this scale \(([\d, ]+)\)"
    )
    assert re.findall(told, readme) == re.findall(told, results) != []


def test_the_page_on_variants_has_the_table_of_the_measured_readings():
    page = (PROJECT / "docs/variants.md").read_text(encoding="utf-8")
    lines = list(readings.markdown(pd.read_parquet(readings.TABLE)))
    assert len(lines) == 2 + len(readings.READINGS)
    assert "\n".join(lines) in page


def words(page):
    """Words and numbers, with those of tables and code."""
    return sum(any(map(str.isalnum, word)) for word in page.read_text(encoding="utf-8").split())


def test_a_page_is_read_in_ten_minutes_and_all_in_an_afternoon():
    written = {page: words(page) for page in PAGES if page.name not in GENERATED}
    assert [page for page, count in written.items() if count > PAGE_WORDS] == []
    assert sum(written.values()) <= ALL_WORDS


def test_the_map_names_the_tables_that_figures_and_the_export_read():
    text = (PROJECT / "docs/map.md").read_text(encoding="utf-8")
    cells = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    named = {
        result.split("`")[1]: {*re.findall(r"`(\w+)`", tables)}
        for _, result, _, tables, *_ in cells
    }
    export = (PROJECT / "workflow/rules/export.smk").read_text(encoding="utf-8")
    read = {
        f"{figure.name}.pdf": {*figure.inputs}
        for figure in figures()
        if f"{figure.name}.pdf" in named
    }
    read["{run}/export/"] = {*re.findall(r'TABLE\.format\("(\w+)"\)', export)}
    rule = (PROJECT / "workflow/rules/figures.smk").read_text(encoding="utf-8")
    read["loops.html"] = {"trajectories", *re.findall(r'TABLE\.format\("(\w+)"\)', rule)}
    assert named == read | {"claims.md": set()}


# A link to a file, and the names in it that follow: rules or functions.
NAMED = re.compile(r"\]\(\.\./([\w/]+\.(?:smk|py))\): ((?:`\w+`(?:, )?)+)")


def test_the_map_leads_in_two_steps_from_a_figure_to_its_rules_and_from_a_rule_to_its_function():
    text = (PROJECT / "docs/map.md").read_text(encoding="utf-8")
    rules, functions = {}, set()
    for path, names in NAMED.findall(text):
        code = (PROJECT / path).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            if path.endswith(".py"):
                assert re.search(rf"^def {name}\(", code, re.MULTILINE), (
                    f"{path} has no function {name}"
                )
                functions.add(
                    f"{path.removeprefix('src/').removesuffix('.py').replace('/', '.')}.{name}"
                )
            else:
                found = re.search(
                    rf"^(?:use rule \w+ as|rule) {name}\b.*?(?=^\S|\Z)",
                    code,
                    re.MULTILINE | re.DOTALL,
                )
                assert found, f"{path} has no rule {name}"
                rules[name] = found[0]
    assert len(rules) == 10
    called = {*re.findall(r'"(twoscale\.[\w.]+\.\w+)"', "".join(rules.values()))}
    assert called - functions == {"twoscale.dynamics.aggregate.join_exit_quality"}  # joins files


def test_the_answers_to_users_are_commands_with_valid_configs():
    page = (PROJECT / "docs/models.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\| .*\? \| `(.*?)`", page, re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        program, _, option, *entries = shlex.split(command)
        assert (program, option) == ("snakemake", "--config")
        config.runs(config.user_config([], entries))
