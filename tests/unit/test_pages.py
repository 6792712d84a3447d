"""Tables become pages that stand alone; benchmark files become one row per rule."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.small import project
from twoscale.base import InputError
from twoscale.report import pages
from twoscale.workflow.rows import Measurement

FRAME = pd.DataFrame({"rule": ["kl", "<b>"], "ms": [1.23456789, float("nan")], "n": [3, 4]})
HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def test_a_page_holds_title_columns_and_values():
    page = pages.sortable(FRAME, "Times & places")
    for text in ("<title>Times &amp; places</title>", "<th>rule</th>", '"1.235", 1.235'):  # shown, sorted by
        assert text in page.replace("\\", "")


def test_text_of_a_table_is_no_markup():
    assert "<b>" not in pages.sortable(FRAME, "t").partition("<h2>")[2].replace(json.dumps("<b>"), "")


def test_a_page_loads_nothing_from_the_network():
    page = pages.sortable(FRAME, "t")
    assert not re.search(r"""(?:src|href)=["']https?://[^"']+\.(?:js|css)""", page)
    assert not re.search(r"""import [^;]{0,200} from ["']https?://""", page)


def test_the_same_table_gives_the_same_bytes():
    assert pages.sortable(FRAME, "t") == pages.sortable(FRAME, "t")


def test_a_page_explains_columns_and_has_a_filter_for_each():
    page = pages.sortable(FRAME, "t", {"ms": "time <b> per token"})
    assert "<li><code>ms</code>: time &lt;b&gt; per token</li>" in page
    assert '"content": ["search"]' in page


def test_markdown_becomes_a_page_with_its_first_line_as_title():
    page = pages.from_markdown("# Claims & verdicts\n\n| a | b |\n| --- | --- |\n| 1 | **holds** |\n")
    for text in ("<title>Claims &amp; verdicts</title>", "<td><strong>holds</strong></td>"):
        assert text in page


def benchmark(folder, name, *values):
    path = folder / f"{name}.tsv"
    path.write_text(HEADER + "\t".join(str(value) for value in values) + "\n")
    return path


def test_jobs_of_a_rule_add_up_and_the_longest_rule_comes_first(tmp_path):
    files = [
        benchmark(tmp_path, "init_model", 5, "0:00:05", 100, 0, 0, 0, 0, 0, 0, 4),
        benchmark(tmp_path, "train_segment_000010", 10, "0:00:10", 300, 0, 0, 0, 0, 0, 0, 8),
        benchmark(tmp_path, "train_segment_000020", 30, "0:00:30", 200, 0, 0, 0, 0, 0, 0, 9),
    ]
    table = pages.runtimes(files)
    assert table.to_dict("records") == [
        {"rule": "train_segment", "jobs": 2, "total_s": 40, "longest_s": 30, "cpu_s": 17, "peak_memory_mb": 300},
        {"rule": "init_model", "jobs": 1, "total_s": 5, "longest_s": 5, "cpu_s": 4, "peak_memory_mb": 100},
    ]


def test_jobs_that_differ_in_other_wildcards_count_as_their_rule(tmp_path):
    """The files of all rows of jobs, with two values of every wildcard."""
    measured = (5, "0:00:05", 100, 0, 0, 0, 0, 0, 0, 4)
    rows = [job for job in project().jobs if isinstance(job, Measurement)]
    stems = {job.name: Path(job.benchmark).stem for job in rows}
    jobs = [{"iteration": "000010", "grid": "exit", "criterion": "kl"}]
    jobs += [{"iteration": "000020", "grid": "pareto", "criterion": "step_norm"}]
    files = {benchmark(tmp_path, stem.format(**values), *measured) for stem in stems.values() for values in jobs}
    found = pages.runtimes(files).set_index("rule")["jobs"].to_dict()
    assert found == {rule: 1 + ("{" in stem) for rule, stem in stems.items()}


def test_a_job_too_short_to_be_measured_keeps_its_time(tmp_path):
    table = pages.runtimes([benchmark(tmp_path, "quick", 0.1, "0:00:00", "-", "-", "-", "-", "-", "-", "NA", "NA")])
    assert table["total_s"].tolist() == [0.1]
    assert table["peak_memory_mb"].isna().all()


def test_no_benchmark_files_give_an_empty_table():
    assert list(pages.runtimes([]).columns)[:2] == ["rule", "jobs"]


def test_a_file_that_is_no_benchmark_is_refused(tmp_path):
    (tmp_path / "x.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(InputError, match=r"x\.tsv: found the columns a, b; expected those of a Snakemake benchmark"):
        pages.runtimes([tmp_path / "x.tsv"])
