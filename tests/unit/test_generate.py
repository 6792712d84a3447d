"""generate.py: a run's files are enough to continue a text, and wrong input ends in one sentence."""

import json
import re
import subprocess
import sys
from pathlib import Path

import generate as generate_script
import pytest

from tests.small import model_config
from twoscale.config import BYTES_VOCABULARY
from twoscale.data import tokens
from twoscale.errors import InputError
from twoscale.exits.loop_heatmap import harmless
from twoscale.model import checkpoints, trained_run
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise

SCRIPT = Path(generate_script.__file__)
DIGEST = "ab" * 32
SEED = 11


def write_run(folder, vocab_size=BYTES_VOCABULARY, tokenizer="bytes", digest=DIGEST, steps=(0, 20, 100)):
    """The files of a run that `open_run` reads: untrained weights at several steps, and what its tokens are."""
    model = model_config(vocab_size=vocabulary, context_length=16)
    identity = {"seed": SEED, "model": vars(model), "train": {}, "data": DIGEST}
    weights = initialise(model, 0).state_dict()
    for step in steps:
        header = Header("weights", step, step * 64, identity, {})
        checkpoints.save(folder / "checkpoints" / f"iteration_{iteration:06d}.safetensors", weights, header)
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "tokens.json").write_text(json.dumps({"tokenizer": tokenizer, "digest": digest}))
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_run(folder / "small")
    return folder


def generate(results, *arguments, run="small", prompt="loop"):
    command = [sys.executable, SCRIPT, "--results", results, "--run", run, "--prompt", prompt, "--threads", "1"]
    return subprocess.run([*command, *arguments], capture_output=True, check=False)


# --- the run's files --------------------------------------------------------------------------------------------


def test_the_last_checkpoint_is_opened_with_its_tokenizer_and_seed(results):
    (results / "small" / "checkpoints" / "iteration_000100.optimizer.safetensors").write_bytes(b"no weights")
    run = trained_run.open_run(results, "small")
    assert (run.step, run.seed, run.tokenizer.name) == (100, SEED, "bytes")
    assert run.model.config.context_length == 16


def test_the_runs_own_bpe_is_read_from_its_file(tmp_path):
    folder = write_run(tmp_path / "own", vocab_size=260, tokenizer="bpe")
    trained = tokens.train_tokenizer(["the loop and the state of the loop"] * 4, 260)
    (folder / "data" / "tokenizer.json").write_text(trained, encoding="utf-8")
    assert trained_run.open_run(tmp_path, "own").tokenizer.vocabulary == 260


def test_a_run_that_is_not_there_is_refused_with_the_names_of_those_that_are(results, tmp_path):
    with pytest.raises(InputError, match=r"run 'other': found no folder .*, expected one of the runs small"):
        trained_run.open_run(results, "other")
    with pytest.raises(InputError, match=r"expected one of the runs \(none\)"):
        trained_run.open_run(tmp_path, "other")


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    write_run(tmp_path / "new", steps=())
    (tmp_path / "new" / "checkpoints").mkdir()
    with pytest.raises(InputError, match="found no checkpoint"):
        trained_run.open_run(tmp_path, "new")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocabulary": 300}, "found a model of 300 token ids, expected 257"),
        ({"digest": "cd" * 32}, "trained on other tokens than those that .*tokens.json describes"),
        ({"tokenizer": "words"}, "found 'words', expected gpt2, bpe or bytes"),
        ({"tokenizer": "bpe"}, "tokenizer.json: found no tokenizer"),
    ],
)
def test_a_checkpoint_and_a_tokenizer_that_do_not_belong_together_are_refused(tmp_path, changes, said):
    write_run(tmp_path / "mixed", **changes)
    with pytest.raises(InputError, match=said):
        trained_run.open_run(tmp_path, "mixed")


def test_a_run_that_does_not_describe_its_tokens_is_refused(tmp_path):
    folder = write_run(tmp_path / "bare")
    (folder / "data" / "tokens.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokens.json: found no description"):
        trained_run.open_run(tmp_path, "bare")


def test_a_header_of_another_version_is_refused(tmp_path):
    path = tmp_path / "old" / "checkpoints" / "iteration_000000.safetensors"
    checkpoints.save(path, {}, Header("weights", 0, 0, {"seed": 1, "model": {"depth": 3}, "data": DIGEST}, {}))
    with pytest.raises(InputError, match="found a header of another version"):
        trained_run.open_run(tmp_path, "old")


# --- the command ------------------------------------------------------------------------------------------------


def test_the_text_goes_to_standard_output_and_its_speed_to_standard_error(results, tmp_path):
    page = tmp_path / "page.html"
    done = generate(
        results, "--tokens", "8", "--criterion", "acceleration", "--tau", "0.5", "--html", page, "--max-loops", "6"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"loop")
    assert b"\x1b[" not in done.stdout
    facts = dict(line.split(": ", 1) for line in done.stderr.decode().splitlines())
    assert facts["stopped"] == "after 8 tokens, as asked for"
    assert re.fullmatch(r"[\d.]+ tokens/s", facts["speed"])
    assert re.fullmatch(r"[\d.]+ in 2, [\d.]+ in 3", facts["mean loops"])
    assert "acceleration 0.5" in page.read_text(encoding="utf-8")


def test_loops_are_coloured_off_a_terminal_only_when_forced_and_drafts_change_no_byte(results):
    options = ["--tokens", "50", "--temperature", "1", "--top-k", "200", "--seed", "3", "--max-loops", "6"]
    plain = generate(results, *options, "--show-loops")
    assert b"\x1b[" not in plain.stdout
    assert b"12 of 50 tokens, because the text fills the model's block of 16" in plain.stderr
    drafted = generate(results, *options, "--show-loops", "always", "--speculative", "3", "--draft-loops", "5")
    assert b"\x1b[30;48;2;" in drafted.stdout
    assert re.sub(rb"\x1b\[[0-9;]*m", b"", drafted.stdout) == harmless(plain.stdout.decode()).encode()
    assert re.search(rb"drafts: \d+ of \d+ accepted", drafted.stderr)


def test_a_rule_of_the_user_generates_text(results, tmp_path):
    file = tmp_path / "three.py"
    file.write_text(
        "from twoscale.exits import Fixed\n\n\n"
        "class Three(Fixed):\n"
        "    def __init__(self, threshold, decode):\n"
        "        super().__init__(3, decode)\n"
    )
    done = generate(results, "--tokens", "4", "--criterion", "Three", "--criterion-file", file, "--tau", "1")
    assert done.returncode == 0, done.stderr.decode()
    assert b"mean loops: 3.00 in 2, 3.00 in 3" in done.stderr


def test_predictions_through_the_remaining_layers_are_an_option(results):
    options = ["--tokens", "8", "--criterion", "kl", "--tau", "0.03", "--max-loops", "20"]
    said = [generate(results, *options, "--readout", name).stderr for name in ("head", "remaining_layers")]
    loops = [re.search(rb"mean loops: ([\d.]+) in 2, ([\d.]+) in 3", text).groups() for text in said]
    assert loops[0][1] != loops[1][1]  # the last group


def test_wrong_input_ends_in_one_sentence(results):
    done = generate(results, "--criterion", "speed", "--tau", "1")
    assert done.returncode == 1
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("error: exit rule 'speed': unknown, expected one of fixed, ")
    assert line.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--criterion", "kl", "--tau", "nan"], "option --tau: found nan, expected a number > 0"),
        (["--criterion", "kl", "--tau", "inf"], "option --tau: found inf, expected a number > 0"),
        (["--criterion", "kl", "--tau", "0"], "option --tau: found 0.0, expected a number > 0"),
        (["--criterion", "kl"], "option --tau: found nothing, expected the threshold of the rule kl"),
        (["--tau", "2.5"], "option --tau: found 2.5, expected a whole number"),
        (["--prompt", ""], "prompt: found no token"),
        (["--prompt", "x" * 16], "prompt: found 16 tokens, expected at most 15"),
        (["--run", "other"], "run 'other': found no folder"),
        (["--tokens", "0"], "option --tokens: found 0"),
        (["--max-loops", "0"], "option --max-loops: found 0"),
        (["--kv-slots", "0"], "kv_slots: found 0"),
        (["--speculative", "0"], "drafts: found 0"),
        (["--speculative", "2", "--draft-loops", "0"], "option --draft-loops: found 0"),
        (["--speculative", "2", "--draft-tau", "-1"], "option --draft-tau: found -1.0"),
        (["--speculative", "2", "--warm-start"], "warm_start: found it together with drafts"),
        (["--criterion-file", "gone.py", "--tau", "1"], "exit rule file gone.py: found no such file"),
        (
            ["--criterion", "kl", "--tau", "1", "--readout", "remaining_layers", "--speculative", "2"],
            "decoder: found remaining_layers together with drafts, expected head",
        ),
        (["--criterion", "speed"], "exit rule 'speed': unknown"),
        (["--draft-tau", "1"], "option --draft-tau: found without --speculative"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_any_text(results, capsys, arguments, said):
    options = ["--results", str(results), "--run", "small", "--prompt", "loop", *arguments]
    with pytest.raises(InputError, match=re.escape(said)):
        generate_script.main(generate_script.parser().parse_args(options))
    assert capsys.readouterr().out == ""
