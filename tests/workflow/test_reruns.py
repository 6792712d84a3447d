"""Plans after edits: some rows of docs/reruns.md, texts and partial states."""

import os
import signal
import time

import pytest

from tests.workflow.conftest import PARTIAL, ROOT, SEGMENT, TARGET
from tests.workflow.reruns import EDITS, PAGE, plan, row

SAMPLE = [edit for edit in EDITS if edit.old in ("math.sqrt(2 / 5)", "key(1e-6,", "CHARACTERS_PER_TOKEN = 9")]
FILES = ("ouro.py", "metrics_log.py", "lens/measure.py", "measures.py")
SAMPLE += [edit for edit in EDITS if edit.path.endswith(FILES)]


def test_the_table_has_a_row_for_every_edit():
    rows = PAGE.read_text().splitlines()
    for edit in EDITS:
        assert sum(line.startswith(row(edit, {}).rpartition(" | none")[0]) for line in rows) == 1, edit
        assert edit.old in (ROOT / edit.path).read_text(), edit


@pytest.mark.parametrize("edit", SAMPLE, ids=lambda edit: f"{edit.path} {edit.old}")
def test_an_edit_plans_the_jobs_of_its_row(editable, edit):
    assert row(edit, plan(editable, edit)) in PAGE.read_text()


@pytest.mark.runs
def test_an_edited_text_is_read_again_and_a_text_that_is_gone_is_not_needed(fresh):
    text = fresh.root / "text.txt"
    text.write_text(
        "".join(f"Chapter {n}.\n\n" + f"The lamp of evening {n} burned low. " * 40 + "\n\n" for n in range(99))
    )
    data = {"source": "txt", "path": "text.txt", "piece_characters": 100, "held_out_fraction": 0.3}
    fresh.configure(data=data | {"held_out_tokens": 2000, "train_characters": 20000})
    tokens = "results/tiny/data/tokens.json"
    fresh.succeed(tokens)
    assert fresh.plan(tokens) == {}
    text.touch()
    assert fresh.plan(tokens) == {}
    content = text.read_text()
    text.write_text(content.replace("lamp", "LAMP", 1))
    assert "prepare_text" in fresh.plan(tokens)
    text.unlink()
    assert fresh.plan(tokens) == {}


@pytest.mark.runs
def test_a_partial_state_of_other_code_is_not_continued(fresh):
    fresh.configure(**SEGMENT)
    snakemake = fresh.start(TARGET)
    end = time.monotonic() + 300
    while not (fresh.root / PARTIAL).exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(snakemake.pid, signal.SIGKILL)  # all at once: a job that is just started would outlive a list of them
    snakemake.wait()
    fresh.succeed("--unlock")
    fresh.edit("src/twoscale/training/recipe.py", "(train.beta1, train.beta2)", "(train.beta1, 0.9 * train.beta2)")
    fresh.succeed(TARGET)
    log = (fresh.root / "results/tiny/logs/train_segment_000160.log").read_text()
    assert "restarting the segment" in log
    assert "code is" in log
