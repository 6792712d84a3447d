"""The recorder and the call of the model: which argument has the token ids, and calls that it
refuses.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from tests.unit.test_recorder import CORE, LOOPS, Cell, Model, model, tokens
from twoscale import tables
from twoscale.base import InputError
from twoscale.dynamics.state_paths import read_states
from twoscale.recorder.recorded import RecordedBatch, StateTables, table_path
from twoscale.recorder.recorder import Recorder

T = 5
IDS = tokens(2, T)
MASK = torch.ones_like(IDS)
OTHER = {
    "attention_mask": MASK,
    "position_ids": torch.arange(T).expand(2, -1),
    "labels": torch.full_like(IDS, -100),
}


class Batched(Model):
    """With arguments as in the transformers library."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        labels=None,
        inputs_embeds=None,
        tokens=None,
    ):
        if inputs_embeds is None:
            return super().forward(input_ids)
        return self.loop(inputs_embeds)

    def loop(self, target):
        state = torch.zeros_like(target)
        for _ in range(LOOPS):
            state = self.cells[0](target, state=state)
        return self.head(state)


class Wrapped(Batched):
    """Passes on the arguments of a call or the entries of a mapping."""

    def forward(self, *arguments, **named):
        if arguments and isinstance(arguments[0], dict):
            return super().forward(**arguments[0])
        return super().forward(*arguments, **named)


class Unusual(Batched):
    """No name says that it is of token ids."""

    def forward(self, text, further=None):
        text = text[0] if isinstance(text, tuple) else text
        return self.loop(self.embedding(text.clamp(min=0)))


class Second(Batched):
    def forward(self, embedded, text):
        return self.loop(embedded)


def of_kind(kind):
    torch.manual_seed(0)
    return kind(Cell()).double().requires_grad_(False)


def record_calls(module, folder, calls, **options):
    with Recorder(module, CORE, folder, iteration=3, **options):
        for arguments, named in calls:
            module(*arguments, **named)


EMBEDDED = of_kind(Batched).embedding(IDS)


@pytest.mark.parametrize(
    ("kind", "arguments", "named"),
    [
        *((Batched, [], {name: OTHER[name], "input_ids": IDS}) for name in OTHER),
        *((Wrapped, [], {name: OTHER[name], "input_ids": IDS}) for name in OTHER),
        (Wrapped, [OTHER | {"input_ids": IDS}], {}),
        (Wrapped, [IDS], {}),
        (Batched, [IDS, MASK], {}),
        (Unusual, [], {"further": torch.ones(2, T), "text": IDS}),
        (Unusual, [], {"further": torch.ones(2, 7, dtype=torch.int64), "text": IDS}),
        (Unusual, [(IDS, EMBEDDED)], {}),
    ],
)
def test_token_ids_are_the_argument_with_their_name_or_the_first_one(
    kind, arguments, named, tmp_path
):
    """The last state is (1 - 2^-6) times the embedding."""
    module = of_kind(kind)
    options = {"decode": module.head, "word": "w{}".format}
    record_calls(module, tmp_path, [(arguments, named)], **options)
    quality = tables.read("scaling_quality", table_path(tmp_path, "scaling_quality", 3))
    logits = module.head(module.embedding(IDS) * (1 - 0.5**LOOPS))[:, :-1]
    wanted = nn.functional.cross_entropy(logits.mT, IDS[:, 1:], reduction="none").mean(1)
    np.testing.assert_allclose(quality.query(f"loops == {LOOPS}")["ce"], wanted, rtol=1e-12)
    states = read_states(tmp_path / "states.safetensors")
    assert states.tokens == [f"w{token}" for token in IDS[0].tolist()]


ABSENT = "^recorder: found a call without known token ids, expected an argument input_ids or tokens"
SEVERAL = "^tokens of the model's call: found the integer tensors "


@pytest.mark.parametrize(
    ("kind", "arguments", "named", "message"),
    [
        (Batched, [], OTHER | {"inputs_embeds": EMBEDDED}, ABSENT),
        (Batched, [None, MASK], {"inputs_embeds": EMBEDDED}, ABSENT),
        (Wrapped, [], {"attention_mask": MASK, "inputs_embeds": EMBEDDED}, ABSENT),
        (Wrapped, [{"attention_mask": MASK, "inputs_embeds": EMBEDDED}], {}, ABSENT),
        (Second, [EMBEDDED, IDS], {}, ABSENT),
        (Unusual, [IDS, MASK], {}, f"{SEVERAL}text, further, expected one"),
        (Unusual, [(IDS, MASK)], {}, f"{SEVERAL}text, text, expected one"),
        (Batched, [], {"input_ids": IDS, "tokens": IDS}, f"{SEVERAL}input_ids, tokens, expected"),
        (
            Unusual,
            [OTHER["labels"]],
            {},
            "^tokens of the model's call: found the id -100, expected",
        ),
    ],
)
def test_a_call_whose_token_ids_are_not_certain_is_refused(
    kind, arguments, named, message, tmp_path
):
    """Also after a call whose ids are known."""
    module = of_kind(kind)
    calls = [(arguments, named)]
    if kind is not Second:
        calls.insert(0, ([IDS], {}))
    with pytest.raises(InputError, match=message):
        record_calls(module, tmp_path, calls, decode=module.head)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("kind", "arguments", "pick"),
    [
        (Second, [EMBEDDED, IDS], "text"),
        (Second, [EMBEDDED, IDS], 1),
        (Unusual, [(IDS, MASK)], lambda text: text[0]),
    ],
)
def test_token_ids_may_be_named(kind, arguments, pick, tmp_path):
    module = of_kind(kind)
    record_calls(module, tmp_path, [(arguments, {})], tokens=pick, decode=module.head)
    states = read_states(tmp_path / "states.safetensors")
    assert states.tokens == list(map(str, IDS[0].tolist()))


def test_ids_that_are_not_measured_may_be_negative(tmp_path):
    module = of_kind(Unusual)
    padded = IDS.clone()
    padded[:, -1] = -1
    options = {"tokens": "text", "mask": lambda text: text >= 0, "decode": module.head}
    record_calls(module, tmp_path, [([padded], {})], **options)
    quality = tables.read("scaling_quality", table_path(tmp_path, "scaling_quality", 3))
    assert set(quality["tokens"]) == {T - 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mask": "attention_mask"},
            "^Batched: found NoneType as argument 'attention_mask', expected a tensor",
        ),
        ({"targets": lambda **_: [1]}, "^Batched: found list as argument .*, expected a tensor"),
        ({"targets": "labels", "decode": lambda x, tokens: x}, ABSENT),
    ],
)
def test_an_option_without_its_tensor_is_refused(options, message, tmp_path):
    module = of_kind(Batched)
    named = {"inputs_embeds": EMBEDDED, "attention_mask": None, "labels": IDS}
    with pytest.raises(InputError, match=message):
        record_calls(module, tmp_path, [([], named)], **({"decode": module.head} | options))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("decoded", [False, True])
def test_a_batch_without_a_token_is_refused(shape, decoded, tmp_path):
    module = model()
    decode = module.head if decoded else None
    calls = [([text], {}) for text in (IDS, torch.zeros(shape, dtype=torch.int64))]
    message = rf"^recorded states: found a batch of .*\({shape[0]}, "
    with pytest.raises(InputError, match=message):
        record_calls(module, tmp_path, calls, decode=decode)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_recording_without_a_measured_token_is_refused(tmp_path):
    states = [torch.ones(2, 3, 4) for _ in range(LOOPS)]
    none = torch.zeros(2, 3, dtype=torch.bool)
    with (
        pytest.raises(InputError, match=r"^recorded states: found no token to measure, expected"),
        StateTables(tmp_path, iteration=3) as recorded,
    ):
        recorded.append(RecordedBatch({"core": states}, mask=none))
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("threads", [1, 4])
def test_calls_from_another_thread_are_refused(threads, tmp_path):
    module = model()
    texts = [tokens(2, 3)] * 8
    with (
        pytest.raises(InputError, match=r"^recorder: found a call from another thread, expected"),
        Recorder(module, CORE, tmp_path, iteration=3),
        ThreadPoolExecutor(threads) as pool,
    ):
        list(pool.map(module, texts))
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
