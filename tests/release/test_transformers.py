"""An export in the transformers library: the same logits, texts and exits as in this one."""

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

from tests import exported
from tests.exported import CONTEXT, MAX_LOOPS, SEED, VARIANTS
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.generate import Sampling, generate
from twoscale.exits.parallel import evaluate
from twoscale.model.noise import EvaluationNoise

pytestmark = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers: make test-tools SUITE=release"
)

PROMPT = "Return the"
NEW = 12
CLOSE = {"rtol": 0, "atol": 1e-12}


def load(folder, **options):
    options = {"dtype": torch.float64} | options
    return transformers_class("AutoModelForCausalLM").from_pretrained(folder, trust_remote_code=True, **options)


def load_tokenizer(folder):
    return transformers_class("AutoTokenizer").from_pretrained(folder, trust_remote_code=True)


def transformers_class(name):
    return getattr(import_module("transformers"), name)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Variant -> its release and the release as a model of transformers, each made once."""
    made = {}

    def of(variant):
        if variant not in made:
            export = exported.export(tmp_path_factory.mktemp(variant), **VARIANTS[variant])
            made[variant] = export, load(export.folder)
        return made[variant]

    return of


def ids(text=PROMPT):
    return torch.tensor([list(text.encode())])


def library_logits(model, tokens, loops=MAX_LOOPS):
    noise = EvaluationNoise.of(model.config, SEED, [0] * len(tokens))
    with torch.no_grad():
        return model(tokens, [loops] * len(model.config.groups), noise)


def library_text(model, prompt, criterion=None, end=None):
    """New tokens of the decoder of scripts/generate.py."""
    decoder = Decoder(model, criterion or make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, SEED)
    return [token.id for token in generate(decoder, prompt, NEW, Sampling(), end)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_library(exports, variant):
    export, model = exports(variant)
    tokens = torch.arange(2 * CONTEXT).reshape(2, -1)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, library_logits(export.model, tokens))
        cached = model(tokens, use_cache=True).logits
    torch.testing.assert_close(cached, library_logits(export.model, tokens), **CLOSE)


def greedy(model, tokens=None, **options):
    """New tokens of the `generate` of transformers."""
    tokens = ids() if tokens is None else tokens
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None} | options
    return model.generate(tokens, **options)[:, tokens.shape[1] :]


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_text_is_that_of_generate_also_under_a_criterion(exports, variant):
    export, model = exports(variant)
    assert greedy(model)[0].tolist() == library_text(export.model, ids()[0].tolist())
    if variant in ("paper", "loop_noise", "grouped_heads"):
        for name in ("acceleration", "kl"):
            found = greedy(model, exit_criterion=name, exit_threshold=THRESHOLDS[name])
            criterion = make_criterion(name, THRESHOLDS[name])
            assert found[0].tolist() == library_text(export.model, ids()[0].tolist(), criterion)


def test_text_ends_at_the_end_of_text_at_a_string_and_at_the_context(exports):
    export, model = exports("paper")
    new = library_text(export.model, ids()[0].tolist())
    ended = greedy(model, eos_token_id=new[3])[0].tolist()
    assert ended == library_text(export.model, ids()[0].tolist(), end=new[3])
    assert ended[-1] == new[3]
    place, letter = next((i, chr(token)) for i, token in enumerate(new) if 32 <= token < 127)
    assert place < NEW - 1
    found = greedy(model, stop_strings=[letter], tokenizer=load_tokenizer(export.folder))
    assert found[0].tolist() == new[: place + 1]
    assert greedy(model, max_new_tokens=20).shape == (1, CONTEXT - ids().shape[1])


def test_a_checkpoint_is_a_sub_folder(exports):
    export, last = exports("paper")
    first = load(export.folder, subfolder="iteration_000000")
    weights = exported.initialise(export.model.config, 0).state_dict()
    assert first.state_dict().keys() == last.state_dict().keys() == {f"model.{name}" for name in weights}
    assert (first.config.iteration, last.config.iteration) == (0, 20)
    assert not torch.equal(first(ids()).logits, last(ids()).logits)
    assert torch.equal(load(export.folder / "iteration_000000")(ids()).logits, first(ids()).logits)


def test_logits_have_the_dtype_of_the_weights_and_tables_of_rotary_embeddings_are_made_anew(exports):
    export, _ = exports("halves")
    model = load(export.folder, dtype=torch.float32)
    again = load(export.folder, dtype="auto").double()
    assert model(ids()).logits.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(again(ids()).logits, library_logits(export.model, ids()))


# thresholds at which some tokens of these untrained models exit early and others do not
THRESHOLDS = {
    "fixed": 3, "step_norm": 2.0, "step_norm_relative": 0.7, "kl": 0.05, "acceleration": 4.0,
    "acceleration_normalized": 0.9, "acceleration_relative": 1.2, "entropy_diff": 0.02, "argmax_stability": 1,
    "cosine": 0.2, "minp_kl": 0.05, "confidence": 0.025, "margin": 0.002, "entropy": 5.3, "exit_gate": 0.9,
}  # fmt: skip


@pytest.mark.parametrize("name", CRITERIA)
def test_exits_are_those_of_the_library_with_and_without_a_cache(exports, name):
    export, model = exports("gate")
    tokens = torch.arange(2 * CONTEXT).reshape(2, -1) * 5 % 257
    noise = EvaluationNoise.of(export.model.config, SEED, [0, 0])
    logits, counts = evaluate(export.model, tokens, make_criterion(name, THRESHOLDS[name]), MAX_LOOPS, noise)
    assert name == "fixed" or len(counts.evaluations.unique()) > 1
    for cached in (False, True):
        found = model(tokens, exit_criterion=name, exit_threshold=THRESHOLDS[name], use_cache=cached)
        assert torch.equal(found.evaluations, counts.evaluations)
        torch.testing.assert_close(found.logits.clone(), logits.clone(), **CLOSE)


def test_the_criterion_of_the_config_holds_unless_a_call_has_another(exports):
    export, model = exports("paper")
    adaptive = load(export.folder, exit_criterion="acceleration", exit_threshold=THRESHOLDS["acceleration"])
    options = {"exit_criterion": "acceleration", "exit_threshold": THRESHOLDS["acceleration"]}
    assert torch.equal(adaptive(ids()).evaluations, model(ids(), **options).evaluations)
    assert adaptive(ids(), exit_threshold=1e-9).evaluations.unique().tolist() == [MAX_LOOPS]
    assert torch.equal(adaptive(ids(), exit_criterion="none").logits, model(ids()).logits)


@pytest.mark.parametrize("options", [{}, {"exit_criterion": "acceleration", "exit_threshold": 4.0}], ids=["all", "a"])
def test_a_text_of_a_batch_with_padding_is_the_text_alone(exports, options):
    """Positions and noise are those of the text, not of the columns."""
    export, model = exports("loop_noise")
    tokenizer = load_tokenizer(export.folder)
    texts = ["Return", "a", "the loop"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert not batch.attention_mask[:, 0].all()
    options |= {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    found = model.generate(**batch, **options)
    whole = model.generate(**batch, use_cache=False, **options)
    logits = model(**batch).logits
    for row, text in enumerate(texts):
        alone = model.generate(ids(text), **options)[0]
        assert torch.equal(found[row, -len(alone) :], alone)
        assert torch.equal(whole[row, -len(alone) :], alone)
        torch.testing.assert_close(logits[row, -len(text) :], model(ids(text)).logits[0], **CLOSE)


def test_a_cache_grows_with_the_text(tmp_path):
    export = exported.export(tmp_path, context_length=150)
    model = load(export.folder)
    tokens = (torch.arange(149) * 7 % 257)[None]
    cache, parts = None, []
    for part in tokens.split(50, 1):
        output = model(part, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens).logits, **CLOSE)


ALONE = """
import json, sys

sys.modules |= dict.fromkeys({refused})  # importing one of them is an error
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float64)
inputs = tokenizer({prompt!r}, return_tensors="pt")
print(json.dumps(model.generate(**inputs, max_new_tokens={new}, do_sample=False, eos_token_id=None)[0].tolist()))
"""
OURS = ("twoscale", "pydantic", "tiktoken", "pandas", "pyarrow", "datasets", "matplotlib", "snakemake")


def test_a_process_without_the_packages_of_this_project_generates_the_same_text(exports):
    export, _ = exports("paper")
    code = ALONE.format(refused=OURS, prompt=PROMPT, new=NEW)
    done = subprocess.run(
        [sys.executable, "-c", code, export.folder], cwd=export.folder, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = ids()[0].tolist() + library_text(export.model, ids()[0].tolist())
    assert json.loads(done.stdout) == expected


def test_the_loss_of_labels_is_the_mean_cross_entropy_and_has_gradients(exports):
    export, _ = exports("untied")
    model = load(export.folder).train()
    tokens = torch.arange(CONTEXT)[None]
    output = model(tokens, labels=tokens)
    expected = torch.nn.functional.cross_entropy(output.logits[0, :-1], tokens[0, 1:])
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-6, atol=0)  # transformers computes it in float32
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def padded(texts, behind=False):
    """A batch (B, T) of texts (1, N) each with padding before or after them, and its mask."""
    longest = max(text.shape[1] for text in texts)
    return (
        torch.cat([torch.nn.functional.pad(row, (longest - row.shape[1], 0)[:: -1 if behind else 1]) for row in rows])
        for rows in (texts, [torch.ones_like(text) for text in texts])
    )


@pytest.mark.parametrize(("cached", "behind"), [(False, False), (True, False), (False, True)])
def test_the_loss_of_a_batch_with_padding_is_that_of_the_texts_alone(exports, cached, behind):
    """No token is predicted from padding, which has read the text, and padding is not predicted."""
    _, model = exports("paper")
    texts = [ids("the loop"), ids("a state of it")]
    tokens, mask = padded(texts, behind)
    with torch.no_grad():
        found = model(tokens, attention_mask=mask, labels=tokens, use_cache=cached).loss
        nats = [model(text, labels=text).loss * (text.shape[1] - 1) for text in texts]
    expected = sum(nats) / sum(text.shape[1] - 1 for text in texts)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"input_ids": torch.zeros(1, 25, dtype=torch.int64)}, "input_ids: found 25 tokens, expected at most 24"),
        ({"max_loops": 0}, r"max_loops: found 0, expected a whole number of loop steps, at least 1\."),
        ({"exit_criterion": "akceleration", "exit_threshold": 0.1}, r"unknown, .*did you mean acceleration\?"),
        ({"exit_criterion": "kl"}, r"exit_threshold: found None, expected a number > 0\."),
        ({"exit_criterion": "kl", "exit_threshold": -1.0}, r"exit_threshold: found -1.0, expected a number > 0\."),
        ({"exit_threshold": 0.1}, "exit_threshold: found 0.1, but no exit_criterion"),
        ({"exit_criterion": "fixed", "exit_threshold": 9}, "exit_threshold: found 9, expected at most max_loops = 5"),
        ({"exit_criterion": "exit_gate", "exit_threshold": 0.5}, "expected a model with model.exit_gate: true"),
        ({"attention_mask": torch.ones(1, 3)}, r"attention_mask: found the shape \(1, 3\), expected \(1, 10\)"),
        ({"attention_mask": torch.arange(10)[None] % 2}, "found padding inside a text, expected it before or after"),
        ({"output_hidden_states": True}, "output_hidden_states: not supported"),
        ({"inputs_embeds": torch.zeros(1, 2, 3)}, "inputs_embeds: not supported"),
        ({"past_key_values": ()}, "past_key_values: found tuple, expected None or what a call with max_loops = 5"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(exports, options, sentence):
    _, model = exports("paper")
    with pytest.raises(Exception, match=sentence) as caught:
        model(**{"input_ids": ids()} | options)
    assert type(caught.value).__name__ == "InputError"


def test_a_cache_of_other_loops_and_a_prompt_beyond_the_context_are_refused(exports):
    _, model = exports("paper")
    cache = model(ids(), use_cache=True, max_loops=2).past_key_values
    with pytest.raises(Exception, match="past_key_values: found LoopCache, expected None or what a call"):
        model(ids(), past_key_values=cache)
    with pytest.raises(Exception, match="input_ids: found 25 tokens"):
        model.generate(torch.zeros(1, 25, dtype=torch.int64), max_new_tokens=20)


def test_padding_is_no_end_of_text(exports):
    """So a collator leaves the ends of texts in the labels, and a batch needs no mask.

    `gated` has as many embeddings as ids.
    """
    export, model = exports("gated")
    tokenizer = load_tokenizer(export.folder)
    assert tokenizer.pad_token_id == model.config.padding_id == export.tokenizer.vocab_size
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    model.config.pad_token_id = tokenizer.pad_token_id  # as Trainer does; transformers warns of it where it is loaded
    assert "pad_token_id" not in model.config.to_dict()
    collator = transformers_class("DataCollatorForLanguageModeling")(tokenizer, mlm=False)
    end = tokenizer.eos_token_id
    texts = [[*b"a loop", end], [*b"the state", end]]
    batch = collator([{"input_ids": text} for text in texts])
    assert (batch["labels"] == end).sum() == 2
    assert (batch["input_ids"][0, :3] == tokenizer.pad_token_id).all()
    output = model(**batch)
    nats = [model(torch.tensor([t]), labels=torch.tensor([t])).loss * (len(t) - 1) for t in texts]
    torch.testing.assert_close(output.loss, sum(nats) / (6 + 9), rtol=1e-6, atol=0)
    assert torch.equal(model(batch["input_ids"]).logits, output.logits)
