"""Generation: sampling by position, where a text ends, drafts that change no token, and
scripts/generate.py.
"""

import json
import random
import re

import pytest
import torch

from tests.published import write_folder
from tests.small import model_config
from tests.unit.test_engine import (
    CONTEXT_LENGTH,
    MAX_LOOPS,
    SEED,
    SEVERAL,
    noise_of,
    ragged_threshold,
    random_model,
    small_model,
    text,
)
from twoscale.base import InputError
from twoscale.config import BYTES_VOCAB_SIZE, plain
from twoscale.data.tokenizer import train_bpe
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.generate import Sampling, Speculation, generate, main, parser
from twoscale.exits.parallel import evaluate
from twoscale.model import checkpoints, trained_run
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise

PROMPT = [3, 1, 4]
GREEDY = Sampling()
RANDOM = Sampling(temperature=1.0, seed=5)
LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 1.5])


def decoder_of(model, name="fixed", threshold=3, **options):
    return Decoder(
        model, make_criterion(name, threshold), MAX_LOOPS, SEED, DecoderOptions(**options)
    )


def ids(new_tokens):
    return [token.id for token in new_tokens]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(0.5, seed=1), range(5)),
        (Sampling(2.0), range(5)),
        (Sampling(1.0, top_k=2), [0, 4]),
        (Sampling(1.0, top_p=1e-9), [0]),  # the probabilities are 0.44, 0.10, 0.16, 0.02 and 0.27
        (Sampling(1.0, top_p=0.5), [0, 4]),
        (Sampling(1.0, top_p=0.8), [0, 2, 4]),
        (Sampling(1.0, top_k=2, top_p=0.6), [0]),  # of the two, the first has 0.62
        (Sampling(1.0, top_k=2, top_p=0.7), [0, 4]),
        (Sampling(5.0, top_k=1), [0]),
        (GREEDY, [0]),
    ],
    ids=str,
)
def test_samples_have_the_proportions_of_the_tokens_that_are_kept(sampling, kept):
    expected = torch.zeros(5)
    expected[kept] = (LOGITS[kept] / (sampling.temperature or 1)).softmax(0)
    chosen = torch.tensor([sampling.choose(LOGITS, position) for position in range(1000)])
    assert (chosen.bincount(minlength=5) / 1000) == pytest.approx(
        expected, abs=0.063
    )  # four standard errors


@pytest.mark.parametrize("further", [{}, {"top_k": 2}, {"top_p": 0.9}, {"top_k": 3, "top_p": 1.0}])
@pytest.mark.parametrize("temperature", [1e-300, 1e-308, 1e-310, 5e-324])
def test_the_limit_of_small_temperatures_is_the_most_likely_token(temperature, further):
    sampling = Sampling(temperature, **further)
    for logits in (LOGITS.flip(0), LOGITS.flip(0) - 5, 1e30 * LOGITS.flip(0)):
        assert {sampling.choose(logits, position) for position in range(20)} == {4}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM, Sampling(1.0, top_k=2, top_p=0.5)], ids=str)
def test_logits_without_a_largest_number_are_refused(sampling, value):
    impossible = torch.tensor([-torch.inf, 0.0, -torch.inf])  # ids that a model rules out
    assert sampling.choose(impossible, 7) == 1
    with pytest.raises(InputError, match=f"^logits at position 7: found {value}, expected finite"):
        sampling.choose(torch.tensor([0.0, value, 1.0]), 7)
    with pytest.raises(InputError, match=r"^logits at position 7: found -inf, expected finite"):
        sampling.choose(torch.full((3,), -torch.inf), 7)


@pytest.mark.parametrize("name", SEVERAL)
def test_greedy_text_is_the_most_likely_token_after_each_prefix(name):
    model = small_model()
    threshold = ragged_threshold(name, model, text(1, 9), noise_of(0))
    criterion = make_criterion(name, threshold)
    new = list(generate(decoder_of(model, name, threshold), PROMPT, 6, GREEDY))
    whole = torch.tensor([PROMPT + ids(new)])
    logits, counts = evaluate(model, whole, criterion, MAX_LOOPS, noise_of(0))
    assert ids(new) == logits[0, len(PROMPT) - 1 : -1].argmax(-1).tolist()
    evaluations = counts.evaluations[:, 0, len(PROMPT) - 1 : -1].T.tolist()
    assert [list(token.evaluations) for token in new] == evaluations


@pytest.mark.parametrize("options", [{}, {"kv_slots": 2}])
def test_a_text_can_be_continued_from_its_first_tokens(options):
    """A sample depends on the position, and the cache only on the text."""
    decoder = decoder_of(small_model(), **options)
    whole = ids(generate(decoder, PROMPT, 8, RANDOM))
    start = ids(generate(decoder, PROMPT, 3, RANDOM))
    assert start + ids(generate(decoder, PROMPT + start, 5, RANDOM)) == whole
    assert len(set(whole)) > 1


def test_a_text_ends_with_the_end_of_text():
    model = small_model()
    free = ids(generate(decoder_of(model), PROMPT, 9, RANDOM))
    end = free[4]
    assert ids(generate(decoder_of(model), PROMPT, 9, RANDOM, end)) == free[: free.index(end) + 1]
    speculation = Speculation(make_criterion("fixed", 3), 3)
    assert (
        ids(generate(decoder_of(model), PROMPT, 9, RANDOM, end, speculation))
        == free[: free.index(end) + 1]
    )


@pytest.mark.parametrize("length", [1, CONTEXT_LENGTH - 1])
@pytest.mark.parametrize("drafts", [0, 1, 50])
def test_a_text_ends_where_it_fills_the_context(length, drafts):
    speculation = Speculation(make_criterion("fixed", 2), drafts) if drafts else None
    new = ids(
        generate(decoder_of(small_model()), [0] * length, 100, GREEDY, speculation=speculation)
    )
    assert len(new) == CONTEXT_LENGTH - length


@pytest.mark.parametrize("case", range(12))
def test_drafts_change_no_token_and_no_count(case):
    draw = random.Random(case)
    model = random_model(draw)
    name, sampling = draw.choice(list(CRITERIA)), draw.choice([GREEDY, RANDOM])
    threshold = ragged_threshold(name, model, text(1, CONTEXT_LENGTH), noise_of(0))
    prompt = text(1, draw.randint(1, 4), case)[0].tolist()
    max_new_tokens = draw.randint(1, CONTEXT_LENGTH)

    def new_tokens(speculation=None):
        decoder = decoder_of(model, name, threshold)
        return list(generate(decoder, prompt, max_new_tokens, sampling, speculation=speculation))

    without_drafts = new_tokens()
    draft_criterion = draw.choice(
        [("fixed", draw.randint(1, MAX_LOOPS)), ("step_norm", 10 ** draw.uniform(-2, 1))]
    )
    assert (
        new_tokens(Speculation(make_criterion(*draft_criterion), draw.randint(1, 6)))
        == without_drafts
    )


def test_drafts_under_the_criterion_of_the_decoder_are_all_accepted():
    speculation = Speculation(make_criterion("fixed", 3), 3)
    new = list(generate(decoder_of(small_model()), [2], 9, GREEDY, speculation=speculation))
    # one token from the prompt, then 3 drafts and one more per pass
    assert len(new) == 9
    assert (speculation.drafted, speculation.accepted) == (6, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Sampling(temperature=-1.0), "temperature: found -1.0"),
        (lambda: Sampling(temperature=float("nan")), "temperature: found nan"),
        (lambda: Sampling(top_k=0), "top_k: found 0"),
        (lambda: Sampling(top_p=1.5), "top_p: found 1.5"),
        (lambda: Speculation(make_criterion("fixed", 1), 0), "drafts: found 0"),
        (lambda: generate(decoder_of(small_model()), [], 5, GREEDY), "prompt: found no token"),
        (
            lambda: generate(decoder_of(small_model()), [0] * CONTEXT_LENGTH, 5, GREEDY),
            f"found {CONTEXT_LENGTH} tokens",
        ),
        (lambda: drafted(warm_start=True), "warm_start: found True together with drafts"),
        (lambda: drafted(kv_slots=2), "kv_slots: found 2 together with drafts"),
        (
            lambda: drafted("kl", readout="remaining_layers"),
            "readout: found remaining_layers together with drafts",
        ),
    ],
)
def test_wrong_calls_are_refused_before_the_first_token(call, message):
    with pytest.raises(InputError, match=message):
        call()


def drafted(name="fixed", **options):
    generate(
        decoder_of(small_model(), name, **options),
        PROMPT,
        3,
        GREEDY,
        speculation=Speculation(None, 3),
    )


# --- the command line -----------------------------------------------------------------------------

DIGEST = "ab" * 32
RUN_SEED = 11


def write_run(
    folder, vocab_size=BYTES_VOCAB_SIZE, tokenizer="bytes", digest=DIGEST, iterations=(0, 20, 100)
):
    """Write the files that `open_run` reads: untrained weights at several iterations, and the
    tokens' metadata.
    """
    model = model_config(vocab_size=vocab_size, context_length=16)
    identity = {"seed": RUN_SEED, "model": plain(model), "train": {}, "data": DIGEST}
    weights = initialise(model, 0).state_dict()
    for iteration in iterations:
        header = Header("weights", iteration, iteration * 64, identity, {})
        checkpoints.save(
            folder / "checkpoints" / f"iteration_{iteration:06d}.safetensors", weights, header
        )
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "tokens.json").write_text(json.dumps({"tokenizer": tokenizer, "digest": digest}))
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    write_run(folder / "small")
    return folder


@pytest.fixture
def generated(results, capfd):
    """What the command prints, called in this process, which has imported its libraries."""

    def call(*arguments):
        run = ("--results", str(results), "--run", "small", "--prompt", "loop", "--threads", "1")
        main(parser().parse_args([*run, *arguments]))
        return capfd.readouterr()

    return call


def test_the_bpe_tokenizer_of_a_run_is_read_from_its_file(tmp_path):
    folder = write_run(tmp_path / "bpe", vocab_size=260, tokenizer="bpe")
    tokenizer = train_bpe(["the loop and the state of the loop"] * 4, 260)
    (folder / "data" / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    assert trained_run.open_run(tmp_path / "bpe").tokenizer.vocab_size == 260


# files of a run -> why it is refused
RUNS = {
    "no checkpoint": (
        {"iterations": ()},
        {},
        r"found no checkpoint in .*, expected one of the runs \(none\)",
    ),
    "other vocabulary": (
        {"vocab_size": 300},
        {},
        "found a model of 300 token ids .* expected 257 and",
    ),
    "other text": (
        {"digest": "cd" * 32},
        {},
        "and the text abab.*, expected 257 and cdcd.* as in .*tokens.json",
    ),
    "no tokenizer": ({"tokenizer": "bpe"}, {}, "tokenizer.json: cannot be used"),
    "no description": ({}, {"data/tokens.json": "{}"}, r"tokens.json: found no description"),
    "published": (
        {"iterations": ()},
        {"data/tokens.json": "{}"},
        "or the folder of a published model",
    ),
}


@pytest.mark.parametrize(("changes", "files", "message"), RUNS.values(), ids=RUNS)
def test_a_run_whose_files_do_not_fit_is_refused(tmp_path, changes, files, message):
    write_run(tmp_path / "run", **changes)
    for name, content in files.items():
        (tmp_path / "run" / name).write_text(content)
    with pytest.raises(InputError, match=message):
        trained_run.open_run(tmp_path / "run")


def test_a_header_of_another_version_is_refused(tmp_path):
    path = tmp_path / "old" / "checkpoints" / "iteration_000000.safetensors"
    checkpoints.save(
        path, {}, Header("weights", 0, 0, {"seed": 1, "model": {"depth": 3}, "data": DIGEST}, {})
    )
    with pytest.raises(InputError, match="found a header from another version"):
        trained_run.open_run(tmp_path / "old")


def test_text_is_written_to_standard_output_and_speed_to_standard_error(generated):
    options = ("--tokens", "8", "--criterion", "acceleration", "--tau", "0.5", "--max-loops", "6")
    printed = generated(*options)
    assert printed.out.startswith("loop")
    several = generated(*options, "--prompt", "loop", "the loops").out
    assert several == printed.out + generated(*options, "--prompt", "the loops").out
    facts = dict(line.split(": ", 1) for line in printed.err.splitlines())
    assert facts["stopped"] == "after 8 tokens, as set by --tokens"
    assert re.fullmatch(r"[\d.]+ tokens/s", facts["speed"])
    assert re.fullmatch(r"[\d.]+ in 2, [\d.]+ in 3", facts["evaluations per token"])
    assert ["tokens/s" in generated("--tokens", count).err for count in "12"] == [False, True]


def test_loops_are_shown_after_each_token_and_drafts_change_no_byte(generated):
    options = [
        "--tokens",
        "50",
        "--temperature",
        "1",
        "--top-k",
        "200",
        "--seed",
        "3",
        "--max-loops",
        "6",
    ]
    plain = generated(*options)
    assert "12 of 50 tokens, because the text fills the model's context of 16" in plain.err
    drafted = generated(*options, "--show-loops", "--speculative", "3", "--draft-loops", "5")
    assert drafted.out.count("[6,6]") == 12
    assert (
        drafted.out.replace("[6,6]", "").encode(errors="replace")[:4]
        == plain.out.encode(errors="replace")[:4]
    )
    assert generated(*options, "--speculative", "3", "--draft-loops", "5").out == plain.out
    assert re.search(r"drafts: \d+ of \d+ accepted", drafted.err)


def test_a_criterion_of_the_user_generates_text(generated, tmp_path):
    file = tmp_path / "three.py"
    file.write_text(
        "from twoscale.exits.criteria import Fixed\n\n\n"
        "class Three(Fixed):\n"
        "    def __init__(self, threshold):\n"
        "        super().__init__(3)\n"
    )
    printed = generated(
        "--tokens", "4", "--criterion", "Three", "--criterion-file", str(file), "--tau", "1"
    )
    assert "evaluations per token: 3.00 in 2, 3.00 in 3" in printed.err


@pytest.mark.parametrize(("name", "loops"), [("huginn", "3.00 in 2-3"), ("ouro", "4.00 in 1-2")])
def test_a_published_model_generates_text_with_its_published_loops_and_room_for_the_text(
    tmp_path, capfd, name, loops
):
    folder = write_folder(name, tmp_path / name)
    main(
        parser().parse_args(
            ["--model", str(folder), "--prompt", "the loop", "--tokens", "4", "--seed", "1"]
        )
    )
    printed = capfd.readouterr()
    assert printed.out.startswith("the loop")
    assert "after 4 tokens, as set by --tokens" in printed.err
    assert f"evaluations per token: {loops}" in printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--criterion", "kl", "--tau", "nan"], "option --tau: found nan, expected a number > 0"),
        (["--criterion", "kl"], "option --tau: found None, expected a number > 0"),
        (["--tau", "2.5"], "option --tau: found 2.5, expected a whole number"),
        (["--tau", "nan"], "option --tau: found nan, expected a whole number"),
        (["--prompt", ""], "prompt: found no token"),
        (["--run", "other"], "run 'other': found no checkpoint"),
        (["--tokens", "0"], "option --tokens: found 0"),
        (
            ["--criterion-file", "gone.py", "--tau", "1"],
            "exit criterion file gone.py: no such file",
        ),
        (["--criterion", "speed"], "exit criterion 'speed': unknown"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_any_output(results, capsys, arguments, message):
    options = ["--results", str(results), "--run", "small", "--prompt", "loop", *arguments]
    with pytest.raises(InputError, match=re.escape(message)):
        main(parser().parse_args(options))
    assert capsys.readouterr().out == ""
