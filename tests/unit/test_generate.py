"""Generation: sampling by position, where a text ends, drafts that change no token, and scripts/generate.py."""

import json
import random
import re

import pytest
import torch

from tests.published import write_folder
from tests.small import job_config, model_config
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
from twoscale.config import BYTES_VOCAB_SIZE, ProbeConfig, plain
from twoscale.data.tokenizer import train_bpe
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.generate import Sampling, Speculation, generate, main, parser
from twoscale.exits.parallel import evaluate
from twoscale.exits.probe import Probe, save_probe
from twoscale.model import checkpoints, trained_run
from twoscale.model.checkpoints import Header
from twoscale.model.transformer import initialise

PROMPT = [3, 1, 4]
GREEDY = Sampling()
RANDOM = Sampling(temperature=1.0, seed=5)
LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 1.5])


def decoder_of(model, name="fixed", threshold=3, **options):
    return Decoder(model, make_criterion(name, threshold), MAX_LOOPS, SEED, DecoderOptions(**options))


def ids(new_tokens):
    return [token.id for token in new_tokens]


def frequencies(sampling, draws=20_000):
    chosen = [sampling.choose(LOGITS, position) for position in range(draws)]
    return torch.bincount(torch.tensor(chosen), minlength=len(LOGITS)) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_follows_the_probabilities_at_a_temperature(temperature):
    expected = (LOGITS / temperature).softmax(0)
    assert frequencies(Sampling(temperature, seed=1)) == pytest.approx(expected, abs=0.015)  # 4 standard errors


def test_top_k_keeps_the_most_likely_tokens_and_their_proportions():
    expected = torch.zeros(5)
    expected[[0, 4]] = LOGITS[[0, 4]].softmax(0)
    assert frequencies(Sampling(1.0, top_k=2)) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(1e-9, [0]), (0.4, [0]), (0.5, [0, 4]), (0.8, [0, 2, 4]), (1.0, [0, 1, 2, 3, 4])]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, kept):
    """The probabilities are 0.44, 0.10, 0.16, 0.02 and 0.27."""
    expected = torch.zeros(5)
    expected[kept] = LOGITS[kept].softmax(0)
    assert frequencies(Sampling(1.0, top_p=top_p)) == pytest.approx(expected, abs=0.015)


def test_top_p_is_a_share_of_what_top_k_keeps():
    """The first of the two most likely tokens has the probability 0.62."""
    assert frequencies(Sampling(1.0, top_k=2, top_p=0.6), 2000).tolist() == [1, 0, 0, 0, 0]
    assert (frequencies(Sampling(1.0, top_k=2, top_p=0.7), 2000) > 0).tolist() == [True, False, False, False, True]


def test_a_sample_is_a_function_of_seed_and_position():
    first = [RANDOM.choose(LOGITS, position) for position in range(50)]
    assert first == [RANDOM.choose(LOGITS, position) for position in reversed(range(50))][::-1]
    assert first != [Sampling(1.0, seed=6).choose(LOGITS, position) for position in range(50)]


def test_temperature_zero_and_top_k_one_are_greedy():
    assert GREEDY.choose(LOGITS, 0) == 0
    assert frequencies(Sampling(5.0, top_k=1), 100)[0] == 1


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
    assert ids(generate(decoder_of(model), PROMPT, 9, RANDOM, end, speculation)) == free[: free.index(end) + 1]


@pytest.mark.parametrize("length", [1, CONTEXT_LENGTH - 1])
@pytest.mark.parametrize("drafts", [0, 1, 50])
def test_a_text_ends_where_it_fills_the_context(length, drafts):
    speculation = Speculation(make_criterion("fixed", 2), drafts) if drafts else None
    new = ids(generate(decoder_of(small_model()), [0] * length, 100, GREEDY, speculation=speculation))
    assert len(new) == CONTEXT_LENGTH - length


@pytest.mark.parametrize("case", range(16))
def test_drafts_change_no_token_and_no_count(case):
    draw = random.Random(case)
    model = random_model(draw)
    name, sampling = draw.choice(list(CRITERIA)), draw.choice([GREEDY, RANDOM])
    threshold = ragged_threshold(name, model, text(1, CONTEXT_LENGTH), noise_of(0), share=0.3)
    prompt = text(1, draw.randint(1, 4), case)[0].tolist()
    max_new_tokens = draw.randint(1, CONTEXT_LENGTH)

    def new_tokens(speculation=None):
        decoder = decoder_of(model, name, threshold)
        return list(generate(decoder, prompt, max_new_tokens, sampling, speculation=speculation))

    without_drafts = new_tokens()
    draft_criterion = draw.choice([("fixed", draw.randint(1, MAX_LOOPS)), ("step_norm", 10 ** draw.uniform(-2, 1))])
    assert new_tokens(Speculation(make_criterion(*draft_criterion), draw.randint(1, 6))) == without_drafts


def test_drafts_under_the_criterion_of_the_decoder_are_all_accepted():
    speculation = Speculation(make_criterion("fixed", 3), 3)
    new = list(generate(decoder_of(small_model()), [2], 9, GREEDY, speculation=speculation))
    # one token from the prompt, then 3 drafts and one more per pass
    assert len(new) == 9
    assert (speculation.passes, speculation.drafted, speculation.accepted) == (2, 6, 6)


def test_drafting_restores_the_criterion_and_the_position_of_the_decoder():
    decoder = decoder_of(small_model())
    criterion = decoder.criterion
    decoder.prefill(PROMPT)
    new = Speculation(make_criterion("fixed", 1), 4).next_tokens(decoder, 5, 5, GREEDY)
    assert decoder.criterion is criterion
    assert decoder.position == len(PROMPT) + len(new)


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
        (lambda: drafted("kl", readout="remaining_layers"), "readout: found remaining_layers together with drafts"),
    ],
)
def test_wrong_calls_are_refused_before_the_first_token(call, message):
    with pytest.raises(InputError, match=message):
        call()


def drafted(name="fixed", **options):
    generate(decoder_of(small_model(), name, **options), PROMPT, 3, GREEDY, speculation=Speculation(None, 3))


# --- the command line ------------------------------------------------------------------------------------------------

DIGEST = "ab" * 32
RUN_SEED = 11


def write_run(folder, vocab_size=BYTES_VOCAB_SIZE, tokenizer="bytes", digest=DIGEST, iterations=(0, 20, 100)):
    """Write the files that `open_run` reads: untrained weights at several iterations, and the tokens' metadata."""
    model = model_config(vocab_size=vocab_size, context_length=16)
    identity = {"seed": RUN_SEED, "model": plain(model), "train": {}, "data": DIGEST}
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
    assert (run.iteration, run.seed, run.tokenizer.name) == (100, RUN_SEED, "bytes")
    assert run.model.config.context_length == 16


def test_the_bpe_tokenizer_of_a_run_is_read_from_its_file(tmp_path):
    folder = write_run(tmp_path / "bpe", vocab_size=260, tokenizer="bpe")
    tokenizer = train_bpe(["the loop and the state of the loop"] * 4, 260)
    (folder / "data" / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    assert trained_run.open_run(tmp_path / "bpe").tokenizer.vocab_size == 260


def test_an_unknown_run_is_refused_with_the_names_of_the_known_ones(results, tmp_path):
    with pytest.raises(InputError, match=r"run 'other': found no checkpoint in .*, expected one of the runs small"):
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
        ({"vocab_size": 300}, "found a model of 300 token ids .* expected 257 and"),
        ({"digest": "cd" * 32}, "and the text abab.*, expected 257 and cdcd.* as in .*tokens.json"),
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


def test_text_is_written_to_standard_output_and_speed_to_standard_error(generated):
    printed = generated("--tokens", "8", "--criterion", "acceleration", "--tau", "0.5", "--max-loops", "6")
    assert printed.out.startswith("loop")
    facts = dict(line.split(": ", 1) for line in printed.err.splitlines())
    assert facts["stopped"] == "after 8 tokens, as set by --tokens"
    assert re.fullmatch(r"[\d.]+ tokens/s", facts["speed"])
    assert re.fullmatch(r"[\d.]+ in 2, [\d.]+ in 3", facts["evaluations per token"])


def test_loops_are_shown_after_each_token_and_drafts_change_no_byte(generated):
    options = ["--tokens", "50", "--temperature", "1", "--top-k", "200", "--seed", "3", "--max-loops", "6"]
    plain = generated(*options)
    assert "12 of 50 tokens, because the text fills the model's context of 16" in plain.err
    drafted = generated(*options, "--show-loops", "--speculative", "3", "--draft-loops", "5")
    assert drafted.out.count("[6,6]") == 12
    assert drafted.out.replace("[6,6]", "").encode(errors="replace")[:4] == plain.out.encode(errors="replace")[:4]
    assert generated(*options, "--speculative", "3", "--draft-loops", "5").out == plain.out
    assert re.search(r"drafts: \d+ of \d+ accepted", drafted.err)


def test_several_prompts_are_continued_one_after_another(results, generated, capfd):
    options = ["--tokens", "5", "--criterion", "acceleration", "--tau", "0.5", "--max-loops", "6", "--seed", "2"]
    alone = [generated(*options, "--prompt", prompt).out for prompt in ("loop", "the loops")]
    assert generated(*options, "--prompt", "loop", "the loops").out == "".join(alone)


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


def test_the_probe_of_a_run_generates_text(results, generated):
    run = trained_run.open_run(results / "small")
    size, groups = run.model.config.hidden_size, len(run.model.config.groups)
    sure = Probe(torch.zeros(groups, size + 2).double(), torch.tensor([5.0, -5.0]).double())  # in the first group only
    fit = job_config(probe=ProbeConfig(), max_loops=4)
    save_probe(results / "small" / "probe.safetensors", sure, run, fit)
    options = ("--criterion", "probe", "--tau", "0.9", "--tokens", "3", "--max-loops", "4")
    assert "evaluations per token: 1.00 in 2, 4.00 in 3" in generated(*options).err
    (results / "small" / "probe.safetensors").unlink()
    with pytest.raises(InputError, match=r"probe\.safetensors: no such file"):
        generated(*options)


@pytest.mark.parametrize(("name", "loops"), [("huginn", "3.00 in 2-3"), ("ouro", "4.00 in 1-2")])
def test_a_published_model_generates_text_with_its_published_loops_and_room_for_the_text(tmp_path, capfd, name, loops):
    folder = write_folder(name, tmp_path / name)
    main(parser().parse_args(["--model", str(folder), "--prompt", "the loop", "--tokens", "4", "--seed", "1"]))
    printed = capfd.readouterr()
    assert printed.out.startswith("the loop")
    assert "after 4 tokens, as set by --tokens" in printed.err
    assert f"evaluations per token: {loops}" in printed.err


def test_a_measured_published_model_is_refused_as_a_run_with_the_option_to_use(tmp_path):
    (tmp_path / "ouro" / "data").mkdir(parents=True)
    with pytest.raises(InputError, match="or the folder of a published model"):
        trained_run.open_run(tmp_path / "ouro")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--criterion", "kl", "--tau", "nan"], "option --tau: found nan, expected a number > 0"),
        (["--criterion", "kl", "--tau", "inf"], "option --tau: found inf, expected a number > 0"),
        (["--criterion", "kl", "--tau", "0"], "option --tau: found 0.0, expected a number > 0"),
        (["--criterion", "kl"], "option --tau: found None, expected a number > 0"),
        (["--tau", "2.5"], "option --tau: found 2.5, expected a whole number"),
        (["--prompt", ""], "prompt: found no token"),
        (["--prompt", "x" * 16], "prompt: found 16 tokens, expected at most 15"),
        (["--run", "other"], "run 'other': found no checkpoint"),
        (["--tokens", "0"], "option --tokens: found 0"),
        (["--max-loops", "0"], "option --max-loops: found 0"),
        (["--kv-slots", "0"], "kv_slots: found 0"),
        (["--speculative", "0"], "drafts: found 0"),
        (["--speculative", "2", "--draft-loops", "0"], "option --draft-loops: found 0"),
        (["--speculative", "2", "--warm-start"], "warm_start: found True together with drafts"),
        (["--criterion-file", "gone.py", "--tau", "1"], "exit criterion file gone.py: no such file"),
        (["--criterion", "speed"], "exit criterion 'speed': unknown"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_any_output(results, capsys, arguments, message):
    options = ["--results", str(results), "--run", "small", "--prompt", "loop", *arguments]
    with pytest.raises(InputError, match=re.escape(message)):
        main(parser().parse_args(options))
    assert capsys.readouterr().out == ""
