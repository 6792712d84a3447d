"""What an edit reruns: everything that it can change, and nothing else."""

import subprocess

import pytest
import yaml

FIGURES = {f"plot_fig{number}": 1 for number in range(1, 6)}
EXITS = {"measure_exit_quality": 4, "join_exit_quality": 1, "benchmark_exits": 1, "judge_claims": 1, "plot_fig4": 1}
FROM_TRAINING_ON = {
    "init_model": 1,
    "train_segment": 1,
    "train_segment_last": 1,
    "extract_trajectories": 3,
    "extract_states": 1,
    "project_states": 1,
    "aggregate_metrics": 1,
    **EXITS,
    **FIGURES,
}


PRESETS = "src/twoscale/studies/*/presets.yaml"


def sources(project):
    return [
        path
        for pattern in (
            "Snakefile",
            "config.yaml",
            "scripts/**/*.py",
            "src/**/*.py",
            "workflow/**/*.*",
            PRESETS,
            "profiles/**/*.yaml",
            "envs/*",
        )
        for path in project.root.glob(pattern)
        if path.is_file()
    ]


def test_a_finished_run_plans_nothing(finished):
    assert finished.plan() == {}


def test_touching_every_source_plans_nothing(editable):
    for path in sources(editable):
        path.touch()
    assert editable.plan() == {}


def test_comments_and_docstrings_plan_nothing(editable):
    for path in sources(editable):
        text = path.read_text()
        if path.suffix == ".py":
            assert text.startswith('"""'), f"{path} has no docstring"
            text = '"""Edited. ' + text[3:]
        if path.suffix in {".py", ".smk", ".yaml"} or path.name == "Snakefile":
            path.write_text(text + "\n# a comment at the end\n")
    assert editable.plan() == {}


def test_the_order_of_keys_plans_nothing(editable):
    for path in [
        editable.root / "config.yaml",
        *editable.root.glob("workflow/presets/*.yaml"),
        *editable.root.glob(PRESETS),
    ]:
        path.write_text(yaml.safe_dump(reversed_keys(yaml.safe_load(path.read_text())), sort_keys=False))
    assert editable.plan() == {}


def reversed_keys(value):
    if isinstance(value, dict):
        return {key: reversed_keys(inner) for key, inner in reversed(value.items())}
    return value


@pytest.mark.parametrize("rule", FIGURES)
def test_an_edit_of_a_figure_redraws_that_figure(editable, rule):
    append_code(editable, f"src/twoscale/figures/{rule.removeprefix('plot_')}.py")
    assert editable.plan() == {rule: 1}


def test_an_edit_of_the_script_that_draws_redraws_the_figures(editable):
    append_code(editable, "scripts/draw.py")
    assert editable.plan() == FIGURES


def test_an_edit_of_the_style_redraws_the_figures(editable):
    append_code(editable, "src/twoscale/figures/style.py")
    assert editable.plan() == FIGURES


def test_an_edit_of_the_model_repeats_everything_from_training_on(editable):
    append_code(editable, "src/twoscale/model/transformer.py")
    assert editable.plan() == FROM_TRAINING_ON


def test_an_edit_of_the_exit_criteria_repeats_the_benchmark(editable):
    append_code(editable, "src/twoscale/exits/criteria.py")
    assert editable.plan() == EXITS


def test_another_threshold_measures_the_quality_of_that_criterion_alone(editable):
    editable.configure(exits={"criteria": {"kl": {"thresholds": [1.0e-2]}}})
    assert editable.plan() == EXITS | {"measure_exit_quality": 1}
    editable.configure(exits={"criteria": {"cosine": {"thresholds": [1.0e-2]}}})
    assert editable.plan() == EXITS | {"measure_exit_quality": 1}
    editable.configure(exits={"criteria": {"kl": None}})
    assert "measure_exit_quality" not in editable.plan()


def test_an_edit_of_the_claims_judges_them_again(editable):
    append_code(editable, "src/twoscale/claims/verdicts.py")
    assert editable.plan() == {"judge_claims": 1}


def append_code(project, path):
    """One more statement, which could change a result."""
    file = project.root / path
    file.write_text(file.read_text() + "\nEDITED = True\n")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model": {"sandwich": "branch"}}, FROM_TRAINING_ON),
        ({"train": {"learning_rate": 2.0e-3}}, FROM_TRAINING_ON),
        ({"train": {"save_seconds": 5}}, {}),
        ({"figures": {"fig1_tokens": 5}}, {"plot_fig1": 1}),
        ({"exits": {"latency_repeats": 1}}, EXITS),
    ],
    ids=["model", "training", "runtime", "figure", "exits"],
)
def test_a_key_of_the_config_repeats_what_it_shapes(editable, config, expected):
    editable.configure(**config)
    assert editable.plan() == expected


def test_further_seeds_are_planned_where_they_are_asked_for_and_nowhere_else(fresh):
    alone = fresh.plan()
    fresh.configure(seeds=[1337, 7])
    assert fresh.plan() == alone
    fresh.configure(seeds=[1337, 7], figures={"seed_band": True})
    with_band = fresh.plan()
    assert with_band["init_model"] == 2
    assert with_band["benchmark_exits"] == 1


@pytest.mark.runs
def test_more_iterations_only_add_segments(editable):
    editable.configure(train={"iterations": 40})
    planned = editable.plan()
    assert planned == {
        "train_segment": 1,
        "train_segment_last": 1,
        "extract_trajectories": 2,
        "extract_states": 1,
        "project_states": 1,
        "aggregate_metrics": 1,
        **EXITS,
        **FIGURES,
    }
    kept = (editable.root / "results/tiny/checkpoints/iteration_000020.safetensors").read_bytes()
    editable.succeed()
    assert (editable.root / "results/tiny/checkpoints/iteration_000020.safetensors").read_bytes() == kept
    assert editable.plan() == {}


@pytest.mark.runs
def test_a_run_of_hundreds_of_segments_is_planned(fresh):
    fresh.configure(train={"iterations": 5000})
    plan = fresh.plan()
    assert (plan["train_segment"], plan["train_segment_last"]) == (499, 1)


def test_planning_does_not_import_torch(finished):
    """It alone would take longer than the rest of a dry run."""
    command = finished.command("-n")
    done = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], cwd=finished.root, capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "twoscale.config.sections" in imported
    assert "torch" not in imported


def test_braces_in_names_of_text_and_criterion_are_no_wildcards(fresh):
    (fresh.root / "crit{a}.py").write_text("class Mine:\n    pass\n")
    criterion = {"thresholds": [0.1], "file": "crit{a}.py", "class": "Mine"}
    (fresh.root / "text{b}").mkdir()
    (fresh.root / "text{b}" / "a.txt").touch()
    for data in ({"source": "txt", "path": "text{b}"}, {"source": "fineweb", "subset": "a{c}"}):
        fresh.configure(data=data, exits={"criteria": {"mine": criterion}})
        assert "measure_exit_quality" in fresh.plan("all", "supplementary", "report_pages")
