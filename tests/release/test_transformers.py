"""An export in the transformers library: the same logits, texts and exits as in this one."""

import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

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
    return transformers_class("AutoModelForCausalLM").from_pretrained(
        folder, trust_remote_code=True, **options
    )


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
    assert (
        first.state_dict().keys()
        == last.state_dict().keys()
        == {f"model.{name}" for name in weights}
    )
    assert (first.config.iteration, last.config.iteration) == (0, 20)
    assert not torch.equal(first(ids()).logits, last(ids()).logits)
    assert torch.equal(load(export.folder / "iteration_000000")(ids()).logits, first(ids()).logits)


def test_logits_have_the_dtype_of_the_weights_and_tables_of_rotary_embeddings_are_made_anew(
    exports,
):
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
    logits, counts = evaluate(
        export.model, tokens, make_criterion(name, THRESHOLDS[name]), MAX_LOOPS, noise
    )
    assert name == "fixed" or len(counts.evaluations.unique()) > 1
    for cached in (False, True):
        found = model(
            tokens, exit_criterion=name, exit_threshold=THRESHOLDS[name], use_cache=cached
        )
        assert torch.equal(found.evaluations, counts.evaluations)
        torch.testing.assert_close(found.logits.clone(), logits.clone(), **CLOSE)


def test_the_criterion_of_the_config_holds_unless_a_call_has_another(exports):
    export, model = exports("paper")
    adaptive = load(
        export.folder, exit_criterion="acceleration", exit_threshold=THRESHOLDS["acceleration"]
    )
    options = {"exit_criterion": "acceleration", "exit_threshold": THRESHOLDS["acceleration"]}
    assert torch.equal(adaptive(ids()).evaluations, model(ids(), **options).evaluations)
    assert adaptive(ids(), exit_threshold=1e-9).evaluations.unique().tolist() == [MAX_LOOPS]
    assert torch.equal(adaptive(ids(), exit_criterion="none").logits, model(ids()).logits)


@pytest.mark.parametrize(
    "options", [{}, {"exit_criterion": "acceleration", "exit_threshold": 4.0}], ids=["all", "a"]
)
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
OURS = (
    "twoscale",
    "pydantic",
    "tiktoken",
    "pandas",
    "pyarrow",
    "datasets",
    "matplotlib",
    "snakemake",
)


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
    torch.testing.assert_close(
        output.loss.double(), expected, rtol=1e-6, atol=0
    )  # transformers computes it in float32
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def padded(texts, behind=False):
    """A batch (B, T) of texts (1, N) each with padding before or after them, and its mask."""
    longest = max(text.shape[1] for text in texts)
    return (
        torch.cat(
            [
                torch.nn.functional.pad(row, (longest - row.shape[1], 0)[:: -1 if behind else 1])
                for row in rows
            ]
        )
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
        (
            {"input_ids": torch.zeros(1, 25, dtype=torch.int64)},
            "input_ids: found 25 tokens, expected at most 24",
        ),
        (
            {"max_loops": 0},
            r"max_loops: found 0, expected a whole number of loop steps, at least 1\.",
        ),
        (
            {"exit_criterion": "akceleration", "exit_threshold": 0.1},
            r"unknown, .*did you mean acceleration\?",
        ),
        ({"exit_criterion": "kl"}, r"exit_threshold: found None, expected a number > 0\."),
        (
            {"exit_criterion": "kl", "exit_threshold": -1.0},
            r"exit_threshold: found -1.0, expected a number > 0\.",
        ),
        ({"exit_threshold": 0.1}, "exit_threshold: found 0.1, but no exit_criterion"),
        (
            {"exit_criterion": "fixed", "exit_threshold": 9},
            "exit_threshold: found 9, expected at most max_loops = 5",
        ),
        (
            {"exit_criterion": "exit_gate", "exit_threshold": 0.5},
            "expected a model with model.exit_gate: true",
        ),
        (
            {"attention_mask": torch.ones(1, 3)},
            r"attention_mask: found the shape \(1, 3\), expected \(1, 10\)",
        ),
        (
            {"attention_mask": torch.arange(10)[None] % 2},
            "found padding inside a text, expected it before or after",
        ),
        (
            {"inputs_embeds": torch.zeros(1, 10, 8)},
            r"input_ids: expected either input_ids or inputs_embeds\.",
        ),
        ({"input_ids": None}, r"input_ids: expected either input_ids or inputs_embeds\."),
        (
            {"output_hidden_states": True, "exit_criterion": "kl", "exit_threshold": 0.1},
            "output_hidden_states: found an exit_criterion, expected none, as a token that has left",
        ),
        ({"output_attentions": True}, r"output_attentions: not supported by this model\."),
        ({"is_causal": False}, "is_causal: not supported"),
        ({"num_items_in_batch": 3}, "num_items_in_batch: not supported"),
        ({"position_ids": torch.arange(10).flip(0)[None]}, "position_ids: not supported"),
        ({"head_mask": torch.ones(2, 2)}, "head_mask: not supported"),
        ({"max_loop": 3}, r"max_loop: not supported by this model \(did you mean max_loops\?\)\."),
        ({"num_steps": 3}, "num_steps: not supported"),
        (
            {"past_key_values": ()},
            "past_key_values: found tuple, expected None or what a call with max_loops = 5",
        ),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(exports, options, sentence):
    _, model = exports("paper")
    with pytest.raises(Exception, match=sentence) as caught:
        model(**{"input_ids": ids()} | options)
    assert type(caught.value).__name__ == "InputError"


@pytest.mark.parametrize(
    "options",
    [
        {"argument_of_a_later_version": None},
        {"argument_of_a_later_version": False, "flag_of_a_later_version": True},
        {"object_of_a_later_version": object(), "output_attentions": False, "is_causal": True},
        {"token_type_ids": torch.zeros(1, 10, dtype=torch.int64)},
        {"position_ids": torch.arange(10)[None]},
    ],
)
def test_an_argument_that_changes_nothing_is_accepted(exports, options):
    _, model = exports("paper")
    assert torch.equal(model(ids(), **options).logits, model(ids()).logits)


def test_positions_of_padding_and_after_a_cache_are_those_of_the_texts(exports):
    _, model = exports("paper")
    tokens, mask = padded([ids("the loop"), ids("a state of it")])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)  # as transformers makes them
    expected = model(tokens, attention_mask=mask).logits
    assert torch.equal(model(tokens, attention_mask=mask, position_ids=positions).logits, expected)
    first = model(tokens[:, :-1], attention_mask=mask[:, :-1], use_cache=True)
    last = model(
        tokens[:, -1:], attention_mask=mask, cache=first.cache, position_ids=positions[:, -1:]
    )
    torch.testing.assert_close(last.logits, expected[:, -1:], **CLOSE)


def test_the_cache_is_taken_and_returned_under_both_of_its_names(exports):
    """`past_key_values` before transformers 5.24, `cache` from then on."""
    _, model = exports("paper")
    whole = model(ids()).logits[:, 6:]
    for name in ("past_key_values", "cache"):
        first = model(ids()[:, :6], use_cache=True)
        assert first.cache is first.past_key_values is not None
        second = model(ids()[:, 6:], **{name: first.cache})
        assert second.cache is first.cache
        torch.testing.assert_close(second.logits, whole, **CLOSE)
    other = model(ids(), use_cache=True).cache
    with pytest.raises(Exception, match="cache: found another one than past_key_values"):
        model(ids(), cache=other, past_key_values=first.cache)


def test_a_conversation_goes_on_with_the_cache_that_generate_returned(exports):
    _, model = exports("paper")
    options = {"do_sample": False, "eos_token_id": None}
    first = model.generate(ids(), max_new_tokens=4, return_dict_in_generate=True, **options)
    second = model.generate(
        first.sequences, past_key_values=first.past_key_values, max_new_tokens=4, **options
    )
    expected = model.generate(ids(), max_new_tokens=8, **options)
    assert torch.equal(second, expected)
    past = model(ids()[:, :6], use_cache=True).cache  # then new tokens alone, with the whole mask
    given = {"attention_mask": torch.ones_like(ids()), "past_key_values": past}
    third = model.generate(ids()[:, 6:], max_new_tokens=8, **given, **options)
    assert torch.equal(third, expected[:, 6:])


def test_sampling_and_the_pipeline_of_text_generation_work(exports):
    export, model = exports("paper")
    torch.manual_seed(1)
    assert greedy(model, do_sample=True).shape == (1, NEW)
    pipeline = transformers_class("pipeline")
    generate = pipeline("text-generation", model=model, tokenizer=load_tokenizer(export.folder))
    (found,) = generate(PROMPT, max_new_tokens=NEW, do_sample=False, return_tensors=True)
    assert found["generated_token_ids"][: ids().shape[1]] == ids()[0].tolist()


def library_states(model, tokens):
    """The embedding, outputs of unlooped layers and states after each loop step, in the order of
    the pass.
    """
    noise = EvaluationNoise.of(model.config, SEED, [0] * len(tokens))
    with torch.no_grad():
        embedding, *stages = model.trace(tokens, [MAX_LOOPS] * len(model.config.groups), noise)
    states = embedding.states
    for stage in stages:
        states = states + (stage.states[1:] if stage.stage.is_group else stage.states)
    return states


@pytest.mark.parametrize("variant", ["paper", "ouro", "parcae", "plain"])
def test_hidden_states_are_the_librarys_after_each_layer_and_loop_step(exports, variant):
    export, model = exports(variant)
    expected = library_states(export.model, ids())
    groups, layers = export.model.config.groups, export.model.config.num_layers
    assert len(expected) == 1 + layers - sum(map(len, groups)) + MAX_LOOPS * len(groups)
    for cached in (False, True):
        output = model(ids(), output_hidden_states=True, use_cache=cached)
        torch.testing.assert_close(list(output.hidden_states), expected, **CLOSE)
        assert torch.equal(output.logits, model(ids(), use_cache=cached).logits)
    assert model(ids()).hidden_states is None
    found = greedy_states(model)
    assert [len(states) for states in found] == [len(expected)] * 3
    assert found[0][0].shape == (1, 10, export.model.config.hidden_size)
    assert found[1][0].shape == (1, 1, export.model.config.hidden_size)


def greedy_states(model):
    options = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 3}
    options |= {"output_hidden_states": True, "return_dict_in_generate": True}
    return model.generate(ids(), **options).hidden_states


def test_hidden_states_of_a_text_in_a_batch_with_padding_are_those_of_the_text(exports):
    _, model = exports("paper")
    texts = [ids("the loop"), ids("a state of it")]
    tokens, mask = padded(texts)
    for cached in (False, True):
        found = model(
            tokens, attention_mask=mask, output_hidden_states=True, use_cache=cached
        ).hidden_states
        alone = model(texts[0], output_hidden_states=True).hidden_states
        for batch, one in zip(found, alone, strict=True):
            torch.testing.assert_close(batch[0, -8:], one[0], **CLOSE)


def test_embeddings_in_place_of_ids_give_the_same_logits_texts_and_gradients(exports):
    _, model = exports("paper")
    tokens, mask = padded([ids("the loop"), ids("a state of it")])
    embeddings = model.get_input_embeddings()(tokens).detach().requires_grad_()
    options = {"exit_criterion": "acceleration", "exit_threshold": THRESHOLDS["acceleration"]}
    for further in ({}, {"use_cache": True}, options):
        found = model(inputs_embeds=embeddings, attention_mask=mask, **further).logits
        assert torch.equal(found, model(tokens, attention_mask=mask, **further).logits)
    model(inputs_embeds=embeddings, attention_mask=mask, labels=tokens).loss.backward()
    assert embeddings.grad.abs().sum() > 0
    prompt = model.get_input_embeddings()(ids()).detach()
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids(), **options)[:, ids().shape[1] :]
    assert torch.equal(model.generate(inputs_embeds=prompt, **options), expected)
    assert expected.shape == (1, CONTEXT - ids().shape[1])
    _, parcae = exports("parcae")
    with pytest.raises(
        Exception, match="inputs_embeds: not supported by this model, whose value embeddings need"
    ):
        parcae(inputs_embeds=prompt)


@pytest.mark.parametrize(
    "options", [{}, {"exit_criterion": "acceleration", "exit_threshold": 4.0}], ids=["all", "a"]
)
def test_beam_search_finds_the_same_texts_with_and_without_a_cache(exports, options):
    """After each token the cache is reordered, also the padding before its texts."""
    export, model = exports("loop_noise")
    batch = load_tokenizer(export.folder)(["Return", "the loop"], return_tensors="pt", padding=True)
    options = options | {
        "num_beams": 4,
        "num_return_sequences": 2,
        "max_new_tokens": NEW,
        "eos_token_id": None,
    }
    found = model.generate(**batch, **options, do_sample=False)
    assert found.shape == (4, batch.input_ids.shape[1] + NEW)
    assert torch.equal(found, model.generate(**batch, **options, do_sample=False, use_cache=False))


def test_reordering_a_cache_moves_texts_with_their_padding(exports):
    _, model = exports("paper")
    tokens, mask = padded([ids("the loop"), ids("a state of it")])
    cache = model(tokens[:, :-1], attention_mask=mask[:, :-1], use_cache=True).cache
    cache.reorder_cache(torch.tensor([1, 1]))
    found = model(
        tokens[1:, -1:].expand(2, -1), attention_mask=mask[1:].expand(2, -1), cache=cache
    ).logits
    expected = model(ids("a state of it")).logits[:, -1:]
    torch.testing.assert_close(found, expected.expand(2, -1, -1), **CLOSE)


def test_what_the_model_cannot_do_ends_in_a_sentence_that_says_what_to_do(exports):
    _, model = exports("paper")
    for name in ("gradient_checkpointing_enable", "activation_checkpointing_enable"):
        with pytest.raises(
            Exception,
            match=r"^gradient_checkpointing_enable: not .*; use smaller batches .*recompute",
        ):
            getattr(model, name)()
    with pytest.raises(
        Exception,
        match=r"^resize_token_embeddings: found 300 tokens, expected 257, .*; train a run",
    ):
        model.resize_token_embeddings(300)
    for same in (None, 257, 258):  # all ids, and these with padding, which needs no embedding
        assert model.resize_token_embeddings(same) is model.get_input_embeddings()


def test_an_export_of_e6ca50da_generates_after_its_code_was_replaced(tmp_path):
    """CHANGELOG.md says how. The archive is the export of a model with random weights; its code
    knows no `cache`.
    """
    folder = tmp_path / "export"
    with ZipFile(Path(__file__).with_name("export_e6ca50da.zip")) as archive:
        archive.extractall(folder)
    subprocess.run([sys.executable, "-m", "twoscale.export", folder], check=True)
    # transformers 5.23 with the code of the archive generated this text
    assert greedy(load(folder))[0].tolist() == [
        83,
        235,
        222,
        206,
        5,
        25,
        240,
        222,
        240,
        5,
        240,
        222,
    ]


def test_a_cache_of_other_loops_and_a_prompt_beyond_the_context_are_refused(exports):
    _, model = exports("paper")
    cache = model(ids(), use_cache=True, max_loops=2).past_key_values
    with pytest.raises(
        Exception, match="past_key_values: found LoopCache, expected None or what a call"
    ):
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
    model.config.pad_token_id = (
        tokenizer.pad_token_id
    )  # as Trainer does; transformers warns of it where it is loaded
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


def turns(*texts, gaps=()):
    """Ids of texts of equal length, and a mask with 0 in these (text, column)s."""
    tokens = torch.cat([ids(text) for text in texts])
    mask = torch.ones_like(tokens)
    for place in gaps:
        mask[place] = 0
    return tokens, mask


INSIDE = r"^attention_mask: found padding inside a text, expected it before or after\."
SHAPE = r"^attention_mask: found the shape \({}, {}\), expected \({}, {}\), one column for each token of the"
OTHER = "^attention_mask: found another mask of the tokens in the cache than when they were read"


@pytest.mark.parametrize(
    ("first", "gaps", "sentence"),
    [
        ((), [(1, 8)], INSIDE),  # the second turn of text 1 is shorter
        ((), [(1, 4)], OTHER),
        ((), [(0, 0)], OTHER),
        ([(1, 7)], [(1, 7)], INSIDE),  # the first turn is padded on the right
        ([(1, 7)], [], OTHER),
        ([(0, 0)], [], OTHER),
        ([(0, 0), (0, 1)], [(0, 0)], OTHER),
    ],
)
def test_padding_is_checked_in_every_call_with_a_cache(exports, first, gaps, sentence):
    _, model = exports("paper")
    tokens, mask = turns("the loop in it", "a state of one", gaps=gaps)
    start = turns("the loop", "a state ", gaps=first)[1]
    for call in (model, model.generate):
        past = model(tokens[:, :8], attention_mask=start, use_cache=True).cache
        given = tokens if call == model.generate else tokens[:, 8:]
        with pytest.raises(Exception, match=sentence):
            call(given, attention_mask=mask, past_key_values=past)
        assert past.columns == 8  # the refused call has read nothing


def test_padding_that_no_mask_says_is_checked_with_a_cache_too(exports):
    _, model = exports("paper")
    tokens, _ = turns("the loop in it", "a state of one")
    pad = model.config.padding_id
    shorter = tokens[:, :8].clone()
    shorter[1, 6:] = pad
    past = model(shorter, use_cache=True).cache
    with pytest.raises(Exception, match=INSIDE):
        model(tokens[:, 8:], past_key_values=past)
    later = tokens[:, 8:].clone()
    later[1, 0] = pad
    past = model(tokens[:, :8], use_cache=True).cache
    with pytest.raises(Exception, match=INSIDE):
        model(later, past_key_values=past)


@pytest.mark.parametrize("masked", [False, True])
def test_padding_before_a_text_in_the_first_turn_and_after_it_in_the_last_is_the_text_alone(
    exports, masked
):
    """Also in a text that begins in the second turn."""
    _, model = exports("loop_noise")
    texts = ["the loop in", " a state", " it"]
    pad = model.config.padding_id
    columns = [
        [pad] * 0 + [*b"the loop in"] + [pad],
        [pad] * 4 + [*b" a state"],
        [pad] * 8 + [*b" it"] + [pad],
    ]
    tokens = torch.tensor(columns)
    mask = (tokens != pad).long()
    past, parts = None, []
    for start, end in ((0, 6), (6, 7), (7, 10), (10, 12)):
        given = mask[:, :end] if masked else None
        output = model(
            tokens[:, start:end], attention_mask=given, past_key_values=past, use_cache=True
        )
        past = output.cache
        parts.append(output.logits)
    found = torch.cat(parts, 1)
    for row, text in enumerate(texts):
        torch.testing.assert_close(found[row][mask[row] == 1], model(ids(text)).logits[0], **CLOSE)


def test_a_mask_has_a_column_for_each_token_of_the_cache_and_the_call(exports):
    _, model = exports("paper")
    tokens, _ = turns("the loop in it", "a state of one")
    for shape in ((2, 6), (2, 99), (7, 14), (2, 8)):
        past = model(tokens[:, :8], use_cache=True).cache
        with pytest.raises(Exception, match=SHAPE.format(*shape, 2, 14)):
            model(tokens[:, 8:], attention_mask=torch.ones(shape), past_key_values=past)
    given = torch.ones(2, 8, dtype=torch.bool)
    past = model(tokens[:, :8], attention_mask=given, use_cache=True).cache
    given[:] = False  # the cache keeps what the mask was
    found = model(tokens[:, 8:], attention_mask=torch.ones(2, 14), past_key_values=past).logits
    torch.testing.assert_close(found, model(tokens).logits[:, 8:], **CLOSE)
    past = model(tokens[:1, :8], use_cache=True).cache
    with pytest.raises(Exception, match=r"^past_key_values: found a cache of 1 texts, expected 2"):
        model(tokens[:, 8:], past_key_values=past)


@pytest.mark.parametrize("length", [10, 9, 4])
def test_a_prompt_that_the_cache_already_holds_is_refused(exports, length):
    _, model = exports("paper")
    cache = model(ids(), use_cache=True).cache
    held = r"^past_key_values: found a cache of {} tokens and a text of {}, expected a longer text"
    with pytest.raises(Exception, match=held.format(10, length)):
        greedy(model, ids()[:, :length], past_key_values=cache)
    options = {"max_new_tokens": 4, "eos_token_id": None, "return_dict_in_generate": True}
    first = model.generate(ids(), do_sample=False, **options)
    greedy(model, first.sequences, past_key_values=first.past_key_values, max_new_tokens=2)
    with pytest.raises(Exception, match=held.format(15, 14)):
        greedy(model, first.sequences, past_key_values=first.past_key_values, max_new_tokens=2)


@pytest.mark.parametrize("shape", [(10,), (1, 0), (0,), (1, 2, 5)])
def test_ids_and_embeddings_of_another_shape_are_refused(exports, shape):
    _, model = exports("paper")
    found = re.escape(str(shape))
    tokens = torch.zeros(shape, dtype=torch.int64)
    for call in (model, model.generate):
        with pytest.raises(Exception, match=f"^input_ids: found the shape {found}, expected"):
            call(tokens)
    embeddings = torch.zeros(*shape, model.config.hidden_size, dtype=torch.float64)
    for call in (model, model.generate):
        with pytest.raises(Exception, match=r"^inputs_embeds: found the shape .*, expected"):
            call(inputs_embeds=embeddings)
    with pytest.raises(Exception, match=r"^inputs_embeds: found the shape \(1, 10, 3\), expected"):
        model(inputs_embeds=torch.zeros(1, 10, 3, dtype=torch.float64))
