"""Training in pieces of time without Snakemake, and the workflow that continues from there."""

import subprocess
import sys

import pytest

from tests.workflow.conftest import Project, environment

pytestmark = pytest.mark.runs

TRAINING = {"init_model", "train_segment", "train_segment_last"}


def gpu_paper(project: Project, minutes: float) -> str:
    command = [sys.executable, "scripts/gpu_paper.py", "--preset", "tiny", "--minutes", str(minutes)]
    variables = environment() | {"PYTHONPATH": "src"}
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def with_tokens(fresh) -> Project:
    fresh.succeed("results/tiny/data/tokens.json")
    return fresh


def test_the_workflow_trains_nothing_again_that_was_trained_in_pieces(with_tokens):
    assert "iteration 1 of 20 is saved" in gpu_paper(with_tokens, 0)
    assert "all 20 iterations are trained" in gpu_paper(with_tokens, 60)
    planned = with_tokens.plan()
    assert not TRAINING & planned.keys()
    assert planned["extract_trajectories"] == 3


def test_the_workflow_continues_a_segment_from_where_a_piece_stopped(with_tokens):
    gpu_paper(with_tokens, 0)
    last = "results/tiny/checkpoints/iteration_000020.safetensors"
    assert with_tokens.plan(last) == {"train_segment": 1, "train_segment_last": 1}
    with_tokens.succeed(last)
    log = (with_tokens.root / "results/tiny/logs/train_segment_000010.log").read_text()
    assert "restarting" not in log
    assert not (with_tokens.root / "results/tiny/checkpoints/iteration_000010.partial.safetensors").exists()
