"""What an edit reruns: everything that it can change, and nothing else."""

import subprocess
import sys
from contextlib import contextmanager

import pytest
import yaml
from docs import rules

from tests.workflow.conftest import environment
from twoscale.config import PROJECT

FIGURES = {f"plot_fig{number}": 1 for number in range(1, 6)}
EXITS = {
    "measure_exit_quality": 4,
    "join_exit_quality": 1,
    "benchmark_exits": 1,
    "judge_claims": 1,
    "plot_fig4": 1,
}
LOOPS = {"measure_loop_tokens": 1, "plot_loops": 1}
ONE_CRITERION = EXITS | {"measure_exit_quality": 1} | LOOPS
FROM_TRAINING_ON = {
    **{"init_model": 1, "train_segment": 1, "train_segment_last": 1},
    **{"extract_trajectories": 3, "extract_states": 1, "project_states": 1, "aggregate_metrics": 1},
    **EXITS,
    **FIGURES,
    **LOOPS,
}
PRESETS = "src/twoscale/studies/*/presets.yaml"
SOURCES = (
    *(
        "Snakefile",
        "config.yaml",
        "scripts/**/*.py",
        "src/**/*.py",
        "src/**/*.smk",
        "workflow/**/*.*",
        PRESETS,
    ),
    *("profiles/**/*.yaml", "envs/*"),
)


def reversed_keys(value):
    return (
        {key: reversed_keys(inner) for key, inner in reversed(value.items())}
        if isinstance(value, dict)
        else value
    )


def test_touched_sources_comments_docstrings_the_order_of_keys_and_what_changes_no_number_plan_nothing(
    editable,
):
    for path in {
        path for pattern in SOURCES for path in editable.root.glob(pattern) if path.is_file()
    }:
        path.touch()
        text = path.read_text()
        if path.suffix == ".py":
            assert text.startswith('"""'), f"{path} has no docstring"
            text = '"""Edited. ' + text[3:]
        if path.suffix == ".yaml" and path.parent.name == "presets":
            text = yaml.safe_dump(reversed_keys(yaml.safe_load(text)), sort_keys=False)
        if path.suffix in {".py", ".smk", ".yaml"} or path.name == "Snakefile":
            path.write_text(text + "\n# a comment at the end\n")
    editable.edit("src/twoscale/workflow/resources.py", "TRAINING_MB = 16000", "TRAINING_MB = 8000")
    editable.edit("src/twoscale/jobs/command.py", "import json\n", "import json\n\nEDITED = True\n")
    editable.edit("workflow/report/fig2.rst", "{% endif %}", "{% endif %}One more sentence. ")
    editable.configure(
        train={"save_seconds": 5}, download={"retries": 1, "timeout": 3.0}, seeds=[1337, 7]
    )
    assert editable.plan() == {}


@pytest.fixture(scope="module")
def shared(finished, tmp_path_factory):
    """A copy of the finished project in which edits are taken back."""
    return finished.copy(tmp_path_factory.mktemp("shared"))


@contextmanager
def edited(project, path, old, new):
    """An edit of a file; without `old`, a line that is added at its end."""
    file = project.root / path
    text = file.read_text()
    assert old in text, path
    try:
        file.write_text(text.replace(old, new, 1) if old else f"{text}\n{new}\n")
        yield
    finally:
        file.write_text(text)


# File -> what is replaced, the new text, and the jobs that are planned. A statement at the end
# could change a result. tests/unit/test_reruns.py has the modules of each job.
EDITS = {
    "src/twoscale/model/transformer.py": (("", "EDITED = True"), FROM_TRAINING_ON),
    "src/twoscale/dynamics/measures.py": (
        ("", '@loop_measure("new", unit="1")\ndef new(step): return step.step_norm'),
        {"extract_trajectories": 3, "aggregate_metrics": 1, "judge_claims": 1, "plot_loops": 1}
        | {f"plot_fig{number}": 1 for number in (2, 3, 5)},
    ),
    "src/twoscale/tables.py": (
        ('"threshold": ("float64"', '"threshold": ("float32"'),
        EXITS | LOOPS,
    ),
}


@pytest.mark.parametrize("path", EDITS)
def test_an_edit_of_a_file_repeats_what_it_can_change(shared, path):
    (old, new), expected = EDITS[path]
    shared.configure()
    with edited(shared, path, old, new):
        assert shared.plan() == expected


CONFIGS = {
    "model": ({"model": {"sandwich": "branch"}}, FROM_TRAINING_ON),
    "threshold": ({"exits": {"criteria": {"kl": {"thresholds": [1.0e-2]}}}}, ONE_CRITERION),
    "fewer criteria": (
        {"exits": {"criteria": {"kl": None}}},
        {rule: count for rule, count in EXITS.items() if rule != "measure_exit_quality"} | LOOPS,
    ),
}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_key_of_the_config_repeats_what_it_shapes(shared, config):
    keys, expected = CONFIGS[config]
    shared.configure(**keys)
    assert shared.plan() == expected


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"preset": "demo", "run": "tiny"}, "model.context_length was 32 and is 128 now, and"),
        ({"seed": 7}, "seed was 1337"),
    ],
)
def test_a_plan_to_train_over_weights_of_another_config_says_so_in_its_last_line(
    shared, config, found
):
    shared.configure(**config)
    said = shared.run("-n", "results/tiny/checkpoints/iteration_000000.safetensors").stderr
    sentence = f"run tiny: replaces results of another config in results/tiny: {found}"
    assert said.strip().splitlines()[-1].startswith(sentence)


def test_a_plan_to_train_over_weights_with_other_code_says_so_and_one_that_goes_on_does_not(shared):
    sentence = "run tiny: replaces the weights in results/tiny/checkpoints by another training"
    shared.configure()
    with edited(shared, "src/twoscale/training/trainer.py", "", "EDITED = True"):
        assert sentence in shared.run("-n").stderr
    shared.configure(train={"iterations": 30})
    longer = shared.run("-n")
    assert "train_segment_last" in longer.stdout
    assert "replaces" not in longer.stderr


def test_a_plan_names_the_key_that_repeats_a_job_and_no_other(shared):
    """Snakemake shows the whole texts of both configs."""
    shared.configure(trajectories={"tokens": 192})
    said = shared.run("-n", "results/fig3.pdf").stderr.strip().splitlines()
    changed = [line for line in said if line.startswith("rule extract_trajectories: ")]
    assert [line.partition(",")[0] for line in changed] == [
        "rule extract_trajectories: trajectories.tokens was 128 and is 192 now"
    ]


def test_a_fresh_run_plans_one_figure_alone_and_names_with_braces(fresh):
    planned = fresh.plan("results/fig4.pdf")
    assert "plot_fig4" in planned
    assert not {"plot_fig3", "extract_trajectories", "aggregate_metrics"} & set(planned)
    (fresh.root / "crit{a}.py").write_text("class Mine:\n    pass\n")
    criterion = {"thresholds": [0.1], "file": "crit{a}.py", "class": "Mine"}
    (fresh.root / "text{b}").mkdir()
    (fresh.root / "text{b}" / "a.txt").touch()
    fresh.configure(
        data={"source": "txt", "path": "text{b}"}, exits={"criteria": {"mine": criterion}}
    )
    assert "measure_exit_quality" in fresh.plan("all", "supplementary", "report_pages")


@pytest.mark.runs
def test_more_iterations_only_add_segments(editable):
    editable.configure(train={"iterations": 40})
    measured = {
        name: FROM_TRAINING_ON[name]
        for name in ("extract_states", "project_states", "aggregate_metrics")
    }
    added = {"train_segment": 1, "train_segment_last": 1, "extract_trajectories": 2}
    assert editable.plan() == added | measured | EXITS | FIGURES | LOOPS
    last, kept = (f"results/tiny/checkpoints/iteration_0000{end}.safetensors" for end in (40, 20))
    before = (editable.root / kept).read_bytes()
    editable.succeed(last)
    assert (editable.root / kept).read_bytes() == before
    assert editable.plan() == {"extract_trajectories": 2} | measured | EXITS | FIGURES | LOOPS


@pytest.mark.runs
def test_a_run_of_hundreds_of_segments_is_planned(fresh):
    fresh.configure(train={"iterations": 5000})
    plan = fresh.plan("results/tiny/checkpoints/iteration_005000.safetensors")
    assert (plan["train_segment"], plan["train_segment_last"]) == (499, 1)


HEAVY = ("torch", "numpy", "pandas", "pyarrow", "safetensors", "matplotlib")
WITHOUT = f"""\
import builtins, sys
plain = builtins.__import__
def refusing(name, globals=None, *rest, **more):
    # by whom: a plugin of Snakemake may import pandas
    if name.partition(".")[0] in {HEAVY} and str((globals or {{}}).get("__name__")).startswith("twoscale"):
        raise ImportError(f"planning imports {{name}} in {{globals['__name__']}}")
    return plain(name, globals, *rest, **more)
builtins.__import__ = refusing
from snakemake.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "arguments",
    [
        "-n --config preset=tiny run=mine",
        "--lint",
        pytest.param("-n --config preset=ouro-1.4b run=mine", marks=pytest.mark.runs),
        pytest.param("-n --directory .test", marks=pytest.mark.runs),
    ],
)
def test_planning_and_linting_import_nothing_that_computes(fresh, arguments):
    """Snakemake, pydantic, PyYAML and jinja2 are enough, as in the catalog: the imports of the
    others are refused.
    """
    command = [sys.executable, "-c", WITHOUT, "--quiet", *arguments.split()]
    done = subprocess.run(
        command,
        cwd=fresh.root,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_picture_of_the_rules_is_that_of_the_workflow():
    assert (PROJECT / "docs/rules.svg").read_text(encoding="utf-8") == rules.drawn(), (
        "run make generated"
    )
