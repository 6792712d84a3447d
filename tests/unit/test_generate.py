"""scripts/generate.py: it needs only the files of a run, and reports wrong input in one sentence."""

import json
import re
import subprocess
import sys

import pytest
import torch

from tests.published import write_folder
from tests.small import ROOT, job_config, model_config
from twoscale.base import InputError
from twoscale.config import BYTES_VOCAB_SIZE, ProbeConfig, plain
from twoscale.data.tokenizer import train_bpe
from twoscale.exits.generate import main, parser
from twoscale.exits.loop_heatmap import neutralise
from twoscale.exits.probe import Probe, save_probe
from twoscale.model import checkpoints, trained_run
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise

SCRIPT = ROOT / "scripts" / "generate.py"
DIGEST = "ab" * 32
SEED = 11


def write_run(folder, vocab_size=BYTES_VOCAB_SIZE, tokenizer="bytes", digest=DIGEST, iterations=(0, 20, 100)):
    """Write the files that `open_run` reads: untrained weights at several iterations, and the tokens' metadata."""
    model = model_config(vocab_size=vocab_size, context_length=16)
    identity = {"seed": SEED, "model": plain(model), "train": {}, "data": DIGEST}
    weights = initialise(model, 0).state_dict()
    for iteration in iterations:
        header = Header("weights", iteration, iteration * 64, identity, {})
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


@pytest.fixture
def generated(results, capfd):
    """What the command prints, called in this process, which has imported its libraries."""

    def call(*arguments):
        run = ("--results", str(results), "--run", "small", "--prompt", "loop", "--threads", "1")
        main(parser().parse_args([*run, *arguments]))
        return capfd.readouterr()

    return call


def test_the_last_checkpoint_is_opened_with_its_tokenizer_and_seed(results):
    (results / "small" / "checkpoints" / "iteration_000100.optimizer.safetensors").write_bytes(b"no weights")
    run = trained_run.open_run(results / "small")
    assert (run.iteration, run.seed, run.tokenizer.name) == (100, SEED, "bytes")
    assert run.model.config.context_length == 16


def test_the_bpe_tokenizer_of_a_run_is_read_from_its_file(tmp_path):
    folder = write_run(tmp_path / "bpe", vocab_size=260, tokenizer="bpe")
    tokenizer = train_bpe(["the loop and the state of the loop"] * 4, 260)
    (folder / "data" / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    assert trained_run.open_run(tmp_path / "bpe").tokenizer.vocab_size == 260


def test_an_unknown_run_is_refused_with_the_names_of_the_known_ones(results, tmp_path):
    with pytest.raises(InputError, match=r"run 'other': found no folder .*, expected one of the runs small"):
        trained_run.open_run(results / "other")
    with pytest.raises(InputError, match=r"expected one of the runs \(none\)"):
        trained_run.open_run(tmp_path / "other")


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    write_run(tmp_path / "new", iterations=())
    (tmp_path / "new" / "checkpoints").mkdir()
    with pytest.raises(InputError, match="found no checkpoint"):
        trained_run.open_run(tmp_path / "new")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 300}, "found a model of 300 token ids, expected 257"),
        ({"digest": "cd" * 32}, "trained on tokens other than those described by .*tokens.json"),
        ({"tokenizer": "words"}, "found 'words', expected gpt2, bpe, bytes or published"),
        ({"tokenizer": "bpe"}, "tokenizer.json: cannot be used as a tokenizer"),
    ],
)
def test_a_checkpoint_of_another_tokenizer_or_text_is_refused(tmp_path, changes, message):
    write_run(tmp_path / "mixed", **changes)
    with pytest.raises(InputError, match=message):
        trained_run.open_run(tmp_path / "mixed")


def test_a_run_without_metadata_of_its_tokens_is_refused(tmp_path):
    folder = write_run(tmp_path / "bare")
    (folder / "data" / "tokens.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokens.json: found no description"):
        trained_run.open_run(tmp_path / "bare")


def test_a_header_of_another_version_is_refused(tmp_path):
    path = tmp_path / "old" / "checkpoints" / "iteration_000000.safetensors"
    checkpoints.save(path, {}, Header("weights", 0, 0, {"seed": 1, "model": {"depth": 3}, "data": DIGEST}, {}))
    with pytest.raises(InputError, match="found a header from another version"):
        trained_run.open_run(tmp_path / "old")


def test_text_is_written_to_standard_output_and_speed_to_standard_error(results, tmp_path):
    page = tmp_path / "page.html"
    done = generate(
        results, "--tokens", "8", "--criterion", "acceleration", "--tau", "0.5", "--html", page, "--max-loops", "6"
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"loop")
    assert b"\x1b[" not in done.stdout
    facts = dict(line.split(": ", 1) for line in done.stderr.decode().splitlines())
    assert facts["stopped"] == "after 8 tokens, as set by --tokens"
    assert re.fullmatch(r"[\d.]+ tokens/s", facts["speed"])
    assert re.fullmatch(r"[\d.]+ in 2, [\d.]+ in 3", facts["evaluations per token"])
    assert "acceleration 0.5" in page.read_text(encoding="utf-8")


def test_redirected_text_is_coloured_only_with_always_and_drafts_change_no_byte(generated):
    options = ["--tokens", "50", "--temperature", "1", "--top-k", "200", "--seed", "3", "--max-loops", "6"]
    plain = generated(*options, "--show-loops")
    assert "\x1b[" not in plain.out
    assert "12 of 50 tokens, because the text fills the model's context of 16" in plain.err
    drafted = generated(*options, "--show-loops", "always", "--speculative", "3", "--draft-loops", "5")
    assert "\x1b[30;48;2;" in drafted.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", drafted.out) == neutralise(plain.out)
    assert re.search(r"drafts: \d+ of \d+ accepted", drafted.err)


def test_a_criterion_of_the_user_generates_text(generated, tmp_path):
    file = tmp_path / "three.py"
    file.write_text(
        "from twoscale.exits.criteria import Fixed\n\n\n"
        "class Three(Fixed):\n"
        "    def __init__(self, threshold):\n"
        "        super().__init__(3)\n"
    )
    printed = generated("--tokens", "4", "--criterion", "Three", "--criterion-file", str(file), "--tau", "1")
    assert "evaluations per token: 3.00 in 2, 3.00 in 3" in printed.err


@pytest.mark.runs
def test_the_probe_of_a_run_generates_text(results):
    run = trained_run.open_run(results / "small")
    size, groups = run.model.config.hidden_size, len(run.model.config.groups)
    sure = Probe(torch.zeros(groups, size + 2).double(), torch.tensor([5.0, -5.0]).double())  # in the first group only
    fit = job_config(probe=ProbeConfig(), max_loops=4)
    save_probe(results / "small" / "probe.safetensors", sure, run, fit)
    options = ("--criterion", "probe", "--tau", "0.9", "--tokens", "3", "--max-loops", "4")
    assert b"evaluations per token: 1.00 in 2, 4.00 in 3" in generate(results, *options).stderr
    (results / "small" / "probe.safetensors").unlink()
    assert b"probe.safetensors: no such file" in generate(results, *options).stderr


@pytest.mark.parametrize(("name", "loops"), [("huginn", "3.00 in 2-3"), ("ouro", "4.00 in 1-2")])
def test_a_published_model_generates_text_with_its_published_loops_and_room_for_the_text(tmp_path, capfd, name, loops):
    folder = write_folder(name, tmp_path / name)
    main(parser().parse_args(["--model", str(folder), "--prompt", "the loop", "--tokens", "4", "--seed", "1"]))
    printed = capfd.readouterr()
    assert printed.out.startswith("the loop")
    assert "after 4 tokens, as set by --tokens" in printed.err
    assert f"evaluations per token: {loops}" in printed.err


def test_a_published_model_exits_by_predictions_through_its_remaining_layers_as_published(tmp_path, capfd):
    folder = write_folder("huginn", tmp_path / "huginn")
    options = ["--model", str(folder), "--prompt", "the loop", "--tokens", "20", "--seed", "1", "--max-loops", "40"]
    options += ["--criterion", "argmax_stability", "--tau", "2"]
    facts = []
    for readout in ([], ["--readout", "remaining_layers"], ["--readout", "head"]):
        main(parser().parse_args([*options, *readout]))
        facts.append(re.search(r"evaluations per token: (\S+)", capfd.readouterr().err)[1])
    assert facts[0] == facts[1] != facts[2]


def test_a_measured_published_model_is_refused_as_a_run_with_the_option_to_use(tmp_path):
    (tmp_path / "ouro" / "data").mkdir(parents=True)
    with pytest.raises(InputError, match="or the folder of a published model"):
        trained_run.open_run(tmp_path / "ouro")


def test_predictions_through_the_remaining_layers_are_an_option(generated):
    options = ["--tokens", "8", "--criterion", "kl", "--tau", "0.03", "--max-loops", "20"]
    facts = [generated(*options, "--readout", name).err for name in ("head", "remaining_layers")]
    loops = [re.search(r"evaluations per token: ([\d.]+) in 2, ([\d.]+) in 3", text).groups() for text in facts]
    assert loops[0][1] != loops[1][1]  # the last group


def test_wrong_input_ends_in_one_sentence(results):
    done = generate(results, "--criterion", "speed", "--tau", "1")
    assert done.returncode == 1
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("error: exit criterion 'speed': unknown, expected one of fixed, ")
    assert line.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--criterion", "kl", "--tau", "nan"], "option --tau: found nan, expected a number > 0"),
        (["--criterion", "kl", "--tau", "inf"], "option --tau: found inf, expected a number > 0"),
        (["--criterion", "kl", "--tau", "0"], "option --tau: found 0.0, expected a number > 0"),
        (["--criterion", "kl"], "option --tau: found nothing, expected the threshold of the criterion kl"),
        (["--tau", "2.5"], "option --tau: found 2.5, expected a whole number"),
        (["--prompt", ""], "prompt: found no token"),
        (["--prompt", "x" * 16], "prompt: found 16 tokens, expected at most 15"),
        (["--run", "other"], "run 'other': found no folder"),
        (["--tokens", "0"], "option --tokens: found 0"),
        (["--max-loops", "0"], "option --max-loops: found 0"),
        (["--html", "nowhere/page.html"], "option --html: found no folder nowhere, expected one for the page"),
        (["--kv-slots", "0"], "kv_slots: found 0"),
        (["--speculative", "0"], "drafts: found 0"),
        (["--speculative", "2", "--draft-loops", "0"], "option --draft-loops: found 0"),
        (["--speculative", "2", "--draft-tau", "-1"], "option --draft-tau: found -1.0"),
        (["--speculative", "2", "--warm-start"], "warm_start: cannot be combined with drafts"),
        (["--criterion-file", "gone.py", "--tau", "1"], "exit criterion file gone.py: no such file"),
        (
            ["--criterion", "kl", "--tau", "1", "--readout", "remaining_layers", "--speculative", "2"],
            "readout: found remaining_layers together with drafts, expected head",
        ),
        (["--criterion", "speed"], "exit criterion 'speed': unknown"),
        (["--draft-tau", "1"], "option --draft-tau: requires --speculative"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_any_output(results, capsys, arguments, message):
    options = ["--results", str(results), "--run", "small", "--prompt", "loop", *arguments]
    with pytest.raises(InputError, match=re.escape(message)):
        main(parser().parse_args(options))
    assert capsys.readouterr().out == ""


def batch_file(tmp_path, content="loop\nthe loops\nl\n"):
    file = tmp_path / "prompts.txt"
    file.write_text(content, encoding="utf-8")
    return file


def test_every_prompt_of_a_file_has_the_text_that_it_has_alone(results, tmp_path, capsys):
    run = ["--results", str(results), "--run", "small", "--threads", "1"]
    options = ["--tokens", "5", "--criterion", "acceleration", "--tau", "0.5", "--max-loops", "6", "--seed", "2"]
    main(parser().parse_args([*run, *options, "--sequences", "2", "--batch", str(batch_file(tmp_path))]))
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["prompt"] for line in lines] == ["loop", "the loops", "l"]
    assert re.search(r"evaluations per token: [\d.]+ in 2, [\d.]+ in 3", printed.err)
    for line in lines:
        assert line["tokens"] == 5
        assert list(line["evaluations"]) == ["2", "3"]
        main(parser().parse_args([*run, *options, "--prompt", line["prompt"]]))
        assert capsys.readouterr().out == f"{line['prompt']}{line['text']}\n"


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", [], "found no prompt in"),
        ("loop\n\nloop\n", [], "line 2 of"),
        ("loop\n" + "x" * 16, [], "found 16 tokens, expected at most 15"),
        ("loop", ["--sequences", "0"], "option --sequences: found 0, expected at least 1"),
        ("loop", ["--speculative", "2"], "option --speculative: cannot be combined with --batch"),
        ("loop", ["--kv-slots", "2"], "option --kv-slots: cannot be combined with --batch"),
        (
            "loop",
            ["--criterion", "kl", "--tau", "1", "--readout", "remaining_layers"],
            "found remaining_layers, expected head",
        ),
    ],
)
def test_a_wrong_batch_is_refused_before_any_output(results, tmp_path, capsys, content, arguments, message):
    file = batch_file(tmp_path, content)
    options = ["--results", str(results), "--run", "small", "--batch", str(file), *arguments]
    with pytest.raises(InputError, match=re.escape(message)):
        main(parser().parse_args(options))
    assert capsys.readouterr().out == ""


def test_a_missing_file_of_prompts_is_refused(results, tmp_path):
    options = ["--results", str(results), "--run", "small", "--batch", str(tmp_path / "gone.txt")]
    with pytest.raises(InputError, match=r"option --batch: .*gone.txt is not readable"):
        main(parser().parse_args(options))
