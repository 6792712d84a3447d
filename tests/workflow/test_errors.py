"""Wrong config and wrong input: one sentence before or instead of a result."""

import pytest


def test_a_wrong_config_is_one_sentence_before_any_job(fresh):
    fresh.configure(runs={"a": {"model": {"widht": 32}}})
    done = fresh.run("-n")
    assert done.returncode != 0
    assert "run a (runs.a): config key model: unknown key widht" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


# What users tried, what the config says, and the sentence that they see before any job; others of the config are in
# tests/unit/test_config_loading.py. A target is planned, not run.
TRIES = {
    "a number as people write it": ({"train": {"learning_rate": "6e-4"}, "scaling": {"loops": ["1e0", 2]}}, None),
    "missing text": (
        {"data": {"source": "parquet", "path": "nowhere"}},
        "config key data.path: found nothing at nowhere",
    ),
    "missing class of a criterion": (
        {"exits": {"criteria": {"mine": {"thresholds": [1], "file": "Snakefile.py", "class": "Nope"}}}},
        "exit criterion file Snakefile.py: found no class 'Nope', expected one",
    ),
    "several nodes without SLURM": (
        {"train": {"nodes": 2, "processes": 2}},
        "config key train.nodes: found 2, expected 1 for jobs that do not run on SLURM",
    ),
    "too little disk": (
        {"model": {"hidden_size": 1_000_000, "num_heads": 2}},
        "GB of free disk space, expected at least",
    ),
}


@pytest.mark.parametrize("attempt", TRIES)
def test_a_mistake_of_a_user_is_one_sentence_in_a_dry_run(fresh, monkeypatch, attempt):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config, sentence = TRIES[attempt]
    (fresh.root / "Snakefile.py").write_text("class Mine: pass\n")
    fresh.configure(**config)
    done = fresh.run("-n")
    assert (done.returncode == 0) == (sentence is None)
    if sentence is not None:
        assert sentence in done.stdout + done.stderr
        assert "InputFunctionException" not in done.stdout + done.stderr


def test_the_line_of_broken_yaml_is_named(fresh):
    (fresh.root / "config.yaml").write_text("preset: tiny\ntrain: {iterations: 20\nseed: 1\n")
    done = fresh.run("-n")
    assert "config.yaml, line 3: cannot be read as YAML (" in done.stdout + done.stderr


def test_text_is_collected_without_the_cuda_that_later_jobs_need(fresh, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    fresh.configure(compute={"device": "cuda"})
    assert "prepare_text" in fresh.plan("text")
    done = fresh.run("results/tiny/checkpoints/iteration_000010.safetensors")
    assert done.returncode != 0
    assert "expected cpu, because" in done.stdout + done.stderr
    assert not (fresh.root / "results").exists() or not list((fresh.root / "results").rglob("*.parquet"))


@pytest.mark.runs
def test_a_checkpoint_of_another_config_is_refused(editable):
    """Files brought from elsewhere have no record; only the identity inside them can tell."""
    folder = editable.root / "results/tiny/checkpoints"
    stranger = (folder / "iteration_000000.safetensors").read_bytes()
    editable.configure(run="other", seed=7)
    editable.succeed("results/other/checkpoints/iteration_000000.safetensors")
    target = editable.root / "results/other/checkpoints/iteration_000000.safetensors"
    target.write_bytes(stranger)
    done = editable.run("results/other/checkpoints/iteration_000010.safetensors", "--rerun-triggers", "input")
    assert done.returncode != 0
    assert "belongs to another configuration: seed is 1337 there, expected 7" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("results/fig9.pdf", "results/fig9.pdf: found no rule that makes it, expected a target (all, supplementary, "),
        ("results/foo/tables/drift.parquet", "found no run foo in this config, expected one of tiny"),
        ("suplementary", "(did you mean supplementary?); snakemake --list-rules lists all rules."),
    ],
)
def test_a_target_that_no_rule_makes_is_answered_with_those_that_there_are(fresh, target, sentence):
    done = fresh.run("-n", target)
    assert done.returncode != 0
    assert sentence in done.stdout + done.stderr
    assert "MissingRuleException" not in done.stdout + done.stderr


def test_more_threads_than_cores_are_a_warning_where_training_runs_here(fresh):
    """A run of another machine may be repeated, whose bits depend on its threads."""
    fresh.configure(train={"cpu_threads": 1000})
    done = fresh.succeed("-n")
    assert "config key train.cpu_threads: found 1000 threads over all processes, expected at most" in done.stdout
    assert "train.cpu_threads" not in fresh.succeed("-n", "text").stdout


def test_the_reason_of_a_repeated_job_names_the_key_that_changed(editable):
    editable.configure(train={"learning_rate": 0.003})
    assert "reason: Params have changed since last execution: train.learning_rate 0.001, now 0.003\n" in (
        editable.succeed("-n").stdout
    )
