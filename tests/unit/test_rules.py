"""The rules as they are written, and as Snakemake reads them."""

import json
import re
from pathlib import Path

import pytest
from snakemake.logging import logger

from tests.rules import read_rules, rules, workflows
from tests.small import ROOT
from twoscale.figures.catalogue import figures
from twoscale.workflow import snakefile

RULES = {name: rule for name, rule in rules().items() if rule.output}
STUDIES = sorted((ROOT / "src" / "twoscale" / "studies").glob("*/rules.smk"))
FILES = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk")), *STUDIES]
TEXT = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
DERIVED = {
    name: base for base, name in re.findall(r"^use rule (\w+) as (\w+) with:", TEXT, re.MULTILINE)
}
FROM_A_LOOP = {f"plot_{figure.name}" for figure in figures() if figure.study_folder}


def test_every_rule_but_those_of_the_figures_of_studies_is_written_by_name():
    written = re.findall(r"^(?:use rule \w+ as|rule) (\w+)\b", TEXT, re.MULTILINE)
    assert len(written) == len({*written}) >= 40
    only_for_releases = {"fetch_release"}
    assert {*rules()} - FROM_A_LOOP == {*written} - only_for_releases


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.conda_env])
def test_the_environment_of_a_rule_is_a_file_also_where_a_study_derives_it(name):
    rule = RULES[name]
    assert Path(str(rule.basedir), rule.conda_env).is_file()


@pytest.mark.parametrize("name", [name for name, base in DERIVED.items() if base == "table_job"])
def test_a_job_without_torch_runs_where_snakemake_runs(name):
    """A rule that is derived from a local one is not local unless it says so."""
    assert RULES[name].workflow.is_local(RULES[name])


@pytest.mark.parametrize(
    "name", [name for name, base in DERIVED.items() if base != "train_segment"]
)
def test_logs_and_benchmarks_have_the_name_of_their_rule_and_the_wildcards_of_its_outputs(name):
    rule = RULES[name]
    for file in filter(None, [*rule.log, rule.benchmark]):
        assert Path(file).name.startswith(f"{name}.") or Path(file).name.startswith(f"{name}_{{"), (
            file
        )
        assert {*re.findall(r"\{(\w+)", file)} == rule.wildcard_names


@pytest.mark.parametrize("name", RULES)
def test_a_job_on_a_run_writes_its_log_and_benchmark_to_the_folder_of_the_run(name):
    """The results of two runs stand side by side, and so do their logs."""
    rule = RULES[name]
    of_run = re.compile(r"^results/(\{run\b|tiny/)")
    outputs = {bool(of_run.match(file)) for file in rule.output}
    assert {
        bool(of_run.match(file)) for file in filter(None, [*rule.log, rule.benchmark])
    } <= outputs


def test_every_rule_has_a_sentence_that_no_other_has_and_a_figure_is_called_one():
    sentences = {name: rule.docstring for name, rule in rules().items()}
    assert len({*sentences.values()}) == len(sentences)
    of_figures = {name for name, text in sentences.items() if text.startswith("Figure: ")}
    assert of_figures == {name for name in sentences if name.startswith("plot_")}


@pytest.mark.parametrize("figure", figures(), ids=lambda figure: figure.name)
def test_the_rule_of_a_figure_reads_the_tables_of_its_row(figure):
    assert list(dict(rules()[f"plot_{figure.name}"].input.items())) == list(figure.inputs)


def test_every_job_runs_in_the_image_where_one_is_used(monkeypatch):
    """Snakemake's `container:` holds for the rules after it only."""
    monkeypatch.setattr(snakefile, "in_container", lambda workflow, image: True)
    outside = [rule.name for rule in read_rules("{}").values() if not rule.container_img]
    assert outside == []


def last_lines() -> list[snakefile.LastLines]:
    return [handler for handler in logger.handlers if "LastLines" in type(handler).__name__]


def test_last_lines_are_printed_once_and_are_of_the_workflow_that_was_read_last():
    with workflows(json.dumps({"run": "first"}), json.dumps({"run": "second"})) as read:
        (handler,) = last_lines()
        assert handler.workflow is read[1]
        assert [runs.selected for runs in handler.runs] == ["second"]


def test_last_lines_are_printed_once_where_a_workflow_is_imported_twice(tmp_path):
    (tmp_path / "Snakefile").write_text(
        "".join(
            f"module {run}:\n    snakefile: {str(ROOT / 'Snakefile')!r}\n"
            f"    config: {{'preset': 'tiny', 'run': {run!r}}}\n"
            f"use rule * from {run} as {run}_*\n"
            for run in ("first", "second")
        )
    )
    with workflows("{}", snakefile=tmp_path / "Snakefile"):
        (handler,) = last_lines()
        assert [runs.selected for runs in handler.runs] == ["first", "second"]
