"""The tests pass whatever the user's shell exports."""

import os
import subprocess
import sys

import pytest

from tests.small import ROOT

NOWHERE = "/nonexistent"
PROXY = "http://127.0.0.1:9"
HOSTILE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": NOWHERE,
    "HF_ENDPOINT": PROXY,
    "HF_TOKEN": "of somebody else",
    "TRANSFORMERS_OFFLINE": "1",
    "http_proxy": PROXY,
    "https_proxy": PROXY,
    "ALL_PROXY": PROXY,
    "TIKTOKEN_CACHE_DIR": NOWHERE,
    "SNAKEMAKE_PROFILE": NOWHERE,
    "OMP_NUM_THREADS": "3",
    "MPLBACKEND": "TkAgg",
    "MPLCONFIGDIR": NOWHERE,
    "LC_ALL": "C",
    "LANGUAGE": "de",
    "TZ": "Asia/Tokyo",
    "COLUMNS": "20",
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "PYTHONHASHSEED": "7",
    "PYTHONOPTIMIZE": "0",
    "PYTHONWARNINGS": "error::DeprecationWarning",
    "WORLD_SIZE": "4",
    "RANK": "3",
}
# Tests of a client of the hub, of files, of a figure, of generated text and of Snakemake.
TESTS = (
    "tests/unit/test_model_files.py::test_a_model_is_fetched_without_code_and_pickles",
    "tests/unit/test_files.py",
    "tests/unit/test_loop_heatmap.py",
    "tests/unit/test_figures.py::test_png_is_written_at_300_dots_per_inch_and_other_kinds_are_refused",
    "tests/workflow/test_errors.py::test_a_wrong_config_is_one_sentence_before_any_job",
)


@pytest.mark.runs
def test_tests_pass_under_variables_that_break_downloads_locale_colours_and_threads():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | HOSTILE, capture_output=True, text=True, errors="replace", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_variable_of_that_shell_is_left_here():
    """In a process of its own: `of_the_shell` is applied when the tests are imported."""
    code = "import os, tests.conftest; print(*sorted(os.environ))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | HOSTILE, capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & HOSTILE.keys() - {"LC_ALL", "TZ"}
