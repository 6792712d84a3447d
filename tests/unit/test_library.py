"""The public names of the package: what they return, what they refuse, and what they import."""

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import twoscale
from tests.published import write_folder
from tests.small import ROOT
from tests.unit.test_generate import write_run
from twoscale import tables
from twoscale.base import InputError
from twoscale.exits.criteria import ExitCriterion
from twoscale.model import trained_run

DEMO = ROOT / "docs" / "demo-release" / "demo"
FINEWEB = ROOT / "docs" / "fineweb" / "overnight"
TEXT = "the loop"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model of two groups, "2" and "3", with a context of 16 bytes."""
    return twoscale.open_run(write_run(tmp_path_factory.mktemp("results") / "small"))


# --- the package


def test_the_package_offers_six_documented_names_and_its_version():
    assert {*dir(twoscale)} == {*twoscale.__all__} == {
        *("open_run", "read_table", "evaluate", "make_criterion", "Recorder", "compare", "__version__")
    }  # fmt: skip
    for name in {*twoscale.__all__} - {"__version__"}:
        assert {"Raises:", "Example:"} <= {
            line.strip() for line in getattr(twoscale, name).__doc__.splitlines()
        }, name


def test_a_published_model_is_opened_with_1024_tokens_of_context_unless_told_otherwise():
    assert inspect.signature(twoscale.open_run).parameters["context_length"].default == 1024


def loaded_by(code: str) -> set[str]:
    """Modules that a new process has after the code."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    return {
        *subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=120
        ).stdout.split()
    }


def test_the_import_of_the_package_loads_none_of_its_modules():
    """So that no result depends on the package itself: the fingerprint of a job leaves it out."""
    assert {name for name in loaded_by("import twoscale") if name.startswith("twoscale")} == {
        "twoscale"
    }


def test_the_command_of_the_package_says_what_there_is():
    command = Path(sys.executable).with_name("twoscale")
    said = subprocess.run(
        [command, "overview"], check=True, capture_output=True, text=True, timeout=60, cwd=ROOT
    ).stdout
    assert [
        name
        for name in ("open_run", "snakemake results/fig4.pdf", "scripts/generate.py:")
        if name not in said
    ] == []


def test_the_recorder_is_offered_by_its_package_which_imports_no_torch_before_it_is_used():
    assert "torch" not in loaded_by("import twoscale.recorder")
    assert "torch" in loaded_by("from twoscale.recorder import Input, Loop, Output, Recorder")


def test_tables_are_read_without_torch():
    code = f"import twoscale\ntwoscale.compare({str(DEMO)!r}, {str(FINEWEB)!r}, 'loop_metrics')"
    assert "torch" not in loaded_by(code)


# --- runs


def test_every_checkpoint_of_a_run_can_be_opened(run):
    (run.folder / "checkpoints" / "iteration_000200.optimizer.safetensors").write_bytes(
        b"no weights"
    )
    assert (run.iteration, twoscale.open_run(run.folder).iteration, run.tokenizer.name) == (
        100,
        100,
        "bytes",
    )
    early = twoscale.open_run(str(run.folder), iteration=20)
    assert (early.iteration, early.folder) == (20, run.folder)
    with pytest.raises(
        InputError, match=r"found no checkpoint of iteration 30, expected one of 0, 20, 100"
    ):
        twoscale.open_run(run.folder, iteration=30)


@pytest.mark.parametrize("place", ["small-seed2", "variants/blend"])
def test_a_run_that_shares_the_text_of_another_is_opened_with_its_tokenizer(run, place, tmp_path):
    shutil.copytree(run.folder, tmp_path / "small")
    shutil.copytree(run.folder / "checkpoints", tmp_path / place / "checkpoints")
    broken = tmp_path / "earlier/data/tokens.json"  # of a run that is looked at before
    broken.parent.mkdir(parents=True)
    broken.write_text("{}", encoding="utf-8")
    opened = twoscale.open_run(tmp_path / place)
    torch.testing.assert_close(opened.logits(TEXT), run.logits(TEXT), rtol=0, atol=0)
    # a run on another text is no help
    metadata = tmp_path / "small/data/tokens.json"
    of_text = json.loads(metadata.read_text(encoding="utf-8"))
    metadata.write_text(json.dumps(of_text | {"digest": "0" * 64}), encoding="utf-8")
    with pytest.raises(InputError, match=rf"{place}/data/tokens.json: found no description"):
        twoscale.open_run(tmp_path / place)


def test_a_published_model_is_opened_from_its_folder(tmp_path):
    run = twoscale.open_run(write_folder("ouro", tmp_path / "ouro"), context_length=12)
    assert (run.iteration, run.model.config.context_length) == (0, 12)
    assert run.trace(TEXT)["1-2"].shape[:2] == (run.model.config.typical_loops + 1, 1)


def test_a_published_model_with_a_long_context_is_opened_with_1024_tokens(tmp_path):
    folder = write_folder("ouro", tmp_path / "ouro")
    options = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(options | {"max_position_embeddings": 4096}))
    assert twoscale.open_run(folder).model.config.context_length == 1024


def test_a_trace_has_the_states_of_each_stage_under_its_name(run):
    states = run.trace(TEXT, [3, 5])
    size = run.model.config.hidden_size
    assert {name: tuple(each.shape) for name, each in states.items()} == {
        "embedding": (1, 1, 8, size),
        "layer 1": (1, 1, 8, size),
        "2": (4, 1, 8, size),
        "3": (6, 1, 8, size),
        "layer 4": (1, 1, 8, size),
    }
    assert torch.equal(run.model.readout(states["layer 4"][-1]), run.logits(TEXT, [3, 5]))
    assert torch.equal(run.trace(TEXT, 5)["3"], run.trace(run.tokens(TEXT), [5, 5])["3"])


def test_logits_are_those_of_a_text_or_of_tokens(run):
    logits = run.logits(TEXT)
    assert logits.shape == (1, 8, run.model.config.vocab_size)
    loops = [run.model.config.typical_loops] * 2
    ids = run.tokenizer.encode(TEXT)
    for other in (
        run.logits(ids),
        run.logits(torch.tensor([ids]), loops),
        run.logits(TEXT, loops=loops[0]),
        run.model(run.tokens(TEXT), loops, run.noise()),
    ):
        assert torch.equal(other, logits)
    both = run.logits([ids, ids])
    assert torch.equal(both[:1], logits)
    assert not torch.equal(both[1:], logits)  # another sequence has another noise


GROUPS = "with one for each of the 2 groups 2, 3"


@pytest.mark.parametrize(
    ("text", "loops", "message"),
    [
        (TEXT, [3, 3, 3], rf"loops: found \[3, 3, 3\], expected .* {GROUPS}"),
        (TEXT, 0, "loops: found 0, expected a whole number of at least 1"),
        (TEXT, [2, 1.5], r"loops: found \[2, 1.5\], expected a whole number"),
        (TEXT, True, "loops: found True, expected a whole number"),
        ("x" * 17, 3, "text: found 17 tokens, expected at most 16, the model's context_length"),
        ("", 3, r"tokens: found .* values of shape \(0,\), expected a text of at least one token"),
        ([257], 3, "tokens: found ids from 257 to 257, expected ids from 0 to 256"),
        ([-1, 3], 3, "tokens: found ids from -1 to 3, expected ids from 0 to 256"),
        ([1.5], 3, r"tokens: found torch.float32 values of shape \(1,\)"),
        ([[1], [2, 3]], 3, "tokens: found list, expected"),
    ],
)
def test_wrong_loops_and_texts_are_refused_in_one_sentence(run, text, loops, message):
    for call in (run.trace, run.logits):
        with pytest.raises(InputError, match=message):
            call(text, loops)


# --- exits


def test_exits_and_quality_are_one_row_for_each_token_and_group(run):
    loops = 4
    exits = twoscale.evaluate(run, TEXT, twoscale.make_criterion("fixed", loops), max_loops=6)
    assert list(exits) == [
        "sequence",
        "position",
        "token",
        "group",
        "loop_steps",
        "evaluations",
        "ce",
    ]
    assert list(exits["token"]) == [letter for letter in TEXT for _ in "23"]
    assert list(exits["group"]) == ["2", "3"] * len(TEXT)
    assert set(exits["loop_steps"]) == set(exits["evaluations"]) == {loops}
    # known answer: the cross-entropies of the plain forward pass, which the engine does not use
    ids = run.tokens(TEXT)[0]
    losses = torch.nn.functional.cross_entropy(
        run.logits(TEXT, loops)[0, :-1], ids[1:], reduction="none"
    )
    found = torch.tensor(exits[exits["group"] == "3"]["ce"].to_numpy())
    torch.testing.assert_close(found[:-1], losses.double(), rtol=1e-5, atol=1e-5)
    assert found[-1].isnan()


def test_rows_of_several_sequences_keep_their_tokens_and_counts(run):
    class AtToken(ExitCriterion):
        """Exits after so many steps that groups and tokens differ."""

        def of_group(self, group):
            return twoscale.make_criterion("fixed", 2 + group)

        def start(self, x0):
            return {}

    exits = twoscale.evaluate(run, [[1, 2, 3], [4, 5, 6]], AtToken(1.0))
    assert list(exits["sequence"]) == [0] * 6 + [1] * 6
    assert list(exits["position"]) == [0, 0, 1, 1, 2, 2] * 2
    assert list(exits["token"]) == [
        run.tokenizer.decode([token]) for token in range(1, 7) for _ in "23"
    ]
    assert list(exits["evaluations"]) == [2, 3] * 6


def test_what_cannot_be_evaluated_is_refused_in_one_sentence(run, tmp_path):
    kl, fixed = twoscale.make_criterion("kl", 0.1), twoscale.make_criterion("fixed", 8)
    for criterion, max_loops, message in [
        ("kl", 6, "criterion: found 'kl', expected one such as twoscale.make_criterion"),
        (kl, 0, "max_loops: found 0, expected a whole number of at least 1"),
        (fixed, 6, "threshold of fixed: found 8, expected at most max_loops = 6"),
    ]:
        with pytest.raises(InputError, match=message):
            twoscale.evaluate(run, TEXT, criterion, max_loops)
    with pytest.raises(InputError, match="text: found 17 tokens, expected at most 16"):
        twoscale.evaluate(run, "x" * 17, kl)


# --- tables


def test_a_table_is_read_by_its_name_with_the_meaning_of_its_columns():
    metrics = twoscale.read_table(DEMO, "loop_metrics")
    assert metrics.equals(tables.read("loop_metrics", DEMO / "tables" / "loop_metrics.parquet"))
    assert metrics.attrs["columns"] == tables.meanings("loop_metrics")
    assert set(twoscale.read_table(str(DEMO), "loop_metrics", iteration=600)["iteration"]) == {600}


def test_tables_with_a_file_per_checkpoint_are_one_frame(tmp_path):
    loss = tables.read("training", DEMO / "tables" / "training.parquet")
    for start in (0, 300):
        part = loss[loss["iteration"].between(start + 1, start + 300)]
        tables.write(
            "training", part, tmp_path / "training" / f"iteration_{start + 300:06d}.parquet"
        )
    (tmp_path / "training" / "metrics.csv").write_text("")
    assert twoscale.read_table(tmp_path, "training").equals(loss)
    for iteration in (300, 301):  # a name of a file, and none
        assert list(twoscale.read_table(tmp_path, "training", iteration)["iteration"]) == [
            iteration
        ]


@pytest.mark.parametrize(
    ("folder", "table", "iteration", "message"),
    [
        (
            DEMO,
            "metrics",
            None,
            r"found no table 'metrics', expected one of .*claims, .*did you mean",
        ),
        (
            DEMO,
            "trajectories",
            None,
            r"found no table 'trajectories', expected one of .* \(the job for the table trajectories has not run\)",
        ),
        (
            "nowhere",
            "claims",
            None,
            "nowhere: found no such folder, expected the folder of a run, such as ",
        ),
        (DEMO, "loop_metrics", 7, "found no rows of iteration 7, expected one of 0, .*600"),
        (DEMO, "training", 7000, "found no rows of iteration 7000, expected one from 1 to 600"),
        (
            DEMO,
            "exit_quality",
            7,
            "found no column `iteration`, expected a call without an iteration",
        ),
    ],
)
def test_a_table_that_is_not_there_is_refused_in_one_sentence(folder, table, iteration, message):
    with pytest.raises(InputError, match=message):
        twoscale.read_table(folder, table, iteration)


def test_two_runs_are_one_frame_with_their_names(tmp_path):
    both = twoscale.compare(DEMO, FINEWEB, "loop_metrics")
    assert both.columns[0] == "run"
    parts = [
        frame.drop(columns="run").reset_index(drop=True)
        for _, frame in both.groupby("run", sort=False)
    ]
    for part, folder in zip(parts, (DEMO, FINEWEB), strict=True):
        assert part.equals(twoscale.read_table(folder, "loop_metrics").drop(columns="run"))
    assert list(both["run"].unique()) == ["demo", "overnight"]
    assert both.attrs["columns"] == tables.meanings("loop_metrics")


def test_runs_of_the_same_name_are_told_apart_by_their_paths_and_one_run_is_refused(tmp_path):
    (tmp_path / "demo").symlink_to(FINEWEB)
    assert list(twoscale.compare(DEMO, tmp_path / "demo", "claims")["run"].unique()) == [
        str(DEMO),
        str(tmp_path / "demo"),
    ]
    with pytest.raises(
        InputError, match="twice, expected two runs; within a run, the column `iteration`"
    ):
        twoscale.compare(DEMO, DEMO / ".." / "demo", "claims")


@pytest.mark.parametrize("place", ["results", "resources"])
@pytest.mark.parametrize("run", ["demo", "variants/branch"])
def test_the_tokenizer_of_gpt2_is_found_for_runs_of_studies_too(run, place, tmp_path):
    (tmp_path / place).mkdir()
    (tmp_path / place / "gpt2.tiktoken").touch()
    file = trained_run._gpt2_file(tmp_path / "results" / run)
    assert file == tmp_path / place / "gpt2.tiktoken"
