"""The jobs of the cluster profile in dry runs: no SLURM needed."""

import re
from pathlib import Path

import pytest
import yaml

PROFILES = Path(__file__).parents[2] / "profiles"
CALLS = [
    ("--profile", "profiles/slurm"),
    pytest.param(("--workflow-profile", "profiles/slurm"), marks=pytest.mark.runs),
]
WITH_TORCH = (
    "extract_trajectories extract_states measure_loop_tokens measure_exit_quality benchmark_exits"
).split()


def resources(text: str) -> dict[str, dict[str, str]]:
    """Rule -> resources of its last job in the output of a dry run."""
    jobs = re.findall(r"^ *rule (\w+):\n(?: +\w+: .*\n)*? +resources: (.*)", text, re.MULTILINE)
    return {rule: dict(re.findall(r"(\w+)=([^,]*)", found)) for rule, found in jobs}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_the_paper_is_less_than_sixty_cluster_jobs(fresh, call):
    fresh.configure(preset="paper")
    text = fresh.succeed("-n", *call).stdout
    groups = re.findall(r"Group job (analyses_paper_\d+) ", text)
    jobs = len(groups) + len(
        re.findall(r"^rule (?!show_)", text, re.MULTILINE)
    )  # a copy is made by Snakemake itself
    print(
        f"paper: at most {jobs} cluster jobs, {len(groups)} of them the analyses of one"
        f" checkpoint each"
    )
    assert len(set(groups)) == len(groups) == 16
    assert jobs < 60


def test_jobs_with_torch_ask_for_the_gpus_they_use_and_no_other_does(fresh):
    fresh.configure(preset="paper", train={"processes": 5})
    asked = resources(fresh.succeed("-n", *CALLS[0]).stdout)
    gpus = {rule: found["gpu"] for rule, found in asked.items() if "gpu" in found}
    assert gpus == dict.fromkeys(WITH_TORCH, "1") | {
        "train_segment": "5",
        "train_segment_last": "5",
    }
    # not cut to the two cores that this call of Snakemake has
    assert asked["train_segment"]["cpus_per_task"] == "20"


def test_every_job_with_a_gpu_and_no_other_has_the_model_and_partition_of_the_profile(fresh):
    profile = fresh.root / "profiles" / "slurm" / "config.yaml"
    text = profile.read_text()
    assert text.count("&gpu {gpu_model: None}") == 1
    profile.write_text(
        text.replace("&gpu {gpu_model: None}", "&gpu {gpu_model: a100, slurm_partition: graphics}")
    )
    fresh.configure(preset="paper")
    asked = resources(fresh.succeed("-n", *CALLS[0], "all", "supplementary", "baselines").stdout)
    gpus = {rule for rule, found in asked.items() if found.get("gpu", "0") != "0"}
    assert {rule for rule, found in asked.items() if found.get("gpu_model") == "a100"} == gpus
    assert {
        rule for rule, found in asked.items() if found.get("slurm_partition") == "graphics"
    } == gpus
    assert len(gpus) > len(WITH_TORCH)


def test_preempted_jobs_are_requeued():
    """Snakemake takes a job that stays preempted for one that still runs."""
    assert yaml.safe_load((PROFILES / "slurm" / "config.yaml").read_text())["slurm-requeue"] is True


def test_the_default_profile_overrides_nothing_of_the_cluster_profile():
    """Snakemake reads profiles/default beside `--profile profiles/slurm`, and it wins."""
    default, slurm = (
        yaml.safe_load((PROFILES / name / "config.yaml").read_text())
        for name in ("default", "slurm")
    )
    assert [key for key in default.keys() & slurm.keys() if default[key] != slurm[key]] == []
