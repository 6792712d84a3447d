"""Adaptive decoding of several sequences at once, each token with its own exit.

All sequences take one token at a time through the stages of the model. In a looped group the tokens that have not
exited are computed together, and those that have wait for the slowest. Every sequence gets what
`twoscale.exits.decoder` gives it alone, because the semantics are causal and a token sees its own sequence only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.data.batches import HeldOut
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.decoder import read_parallel
from twoscale.exits.generation import NewToken, check_prompt
from twoscale.exits.kv_cache import KVCache, RowsKV, allocate, tensor_on
from twoscale.exits.parallel import GroupExit, ParallelEngine, stack_counts
from twoscale.exits.prepared import for_batches
from twoscale.model.interface import LoopedModel, any_weight, run_stages
from twoscale.model.noise import DrawnNoise, EvaluationNoise


@dataclass(frozen=True)
class Request:
    """A text to continue.

    Attributes:
        prompt: Token ids, at least one.
        max_new_tokens: Most tokens that follow; fewer where the text fills the model's context.
        choose: (logits (V,), position) -> the token at `position`, such as `Sampling.choose`.
        end_of_text: Token that ends the text, as its last one.
        sequence: Number of the held-out sequence whose noise is read; 0 for other text.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    choose: Callable[[Tensor, int], int]
    end_of_text: int | None = None
    sequence: int = 0


class Decoded(NamedTuple):
    """A token that follows the prompt of request `number`, and whether it is the last one."""

    number: int
    token: NewToken
    is_last: bool


@dataclass(frozen=True)
class BatchOptions:
    """How sequences are decoded together.

    Attributes:
        warm_start: As in `DecoderOptions`.
        readout: "head" or "remaining_layers", see `twoscale.exits.readout`.
        room: Positions that keys and values are allocated for, a text with its prompt; None: the whole
            context of the model.
    """

    warm_start: bool = False
    readout: str = "head"
    room: int | None = None


@dataclass
class _Text:
    """A sequence in flight: its slot in the cache, its last token and the position of that token."""

    number: int
    request: Request
    slot: int
    remaining: int
    position: int
    token: int = 0

    def choose(self, logits: Tensor, evaluations: Sequence[int]) -> Decoded:
        """Append the token that follows, from its logits (V,) and the evaluations that led to them."""
        self.position, self.remaining = self.position + 1, self.remaining - 1
        self.token = self.request.choose(logits, self.position)
        if self.token == self.request.end_of_text:
            self.remaining = 0
        return Decoded(self.number, NewToken(self.token, tuple(evaluations)), not self.remaining)


class BatchedDecoder:
    """Decodes up to `sequences` texts at once under an exit criterion. Keys and values are allocated once."""

    def __init__(
        self,
        model: LoopedModel,
        criterion: ExitCriterion,
        max_loops: int,
        seed: int,
        sequences: int,
        options: BatchOptions = BatchOptions(),
    ) -> None:
        if sequences < 1:
            raise InputError(f"sequences: found {sequences}, expected at least 1.")
        self.model, self.max_loops, self.seed, self.options = model, max_loops, seed, options
        config, like = model.config, any_weight(model)
        self.room = min(options.room or config.context_length, config.context_length)
        allocated = config.model_copy(update={"context_length": self.room})
        self.stored = allocate(allocated, max_loops, sequences, like)
        # one cache per slot, in the same memory
        of_slot = ({n: kv[:, :, slot : slot + 1] for n, kv in self.stored.items()} for slot in range(sequences))
        self._caches = [KVCache(allocated, max_loops, like, stored, model.kv_policy) for stored in of_slot]
        # layer -> (slots, S, T)
        self._present = {n: torch.stack([c.present[n] for c in self._caches], 1) for n in self._caches[0].present}
        for slot, cache in enumerate(self._caches):
            cache.present = {n: present[:, slot] for n, present in self._present.items()}
        self._drawn = DrawnNoise()
        self._exit_states = like.new_zeros(len(config.groups), sequences, config.hidden_size)
        self._positions = torch.arange(self.room, device=like.device)
        self._rows_model = for_batches(model, sequences)
        self.reset(criterion)

    def reset(self, criterion: ExitCriterion) -> None:
        """Decode the next requests under another criterion."""
        models = self.model, self._rows_model
        engines = (ParallelEngine(model, criterion, self.max_loops, self.options.readout) for model in models)
        self._prompt_engine, self._rows_engine = engines

    @torch.inference_mode()
    def decode(self, requests: Iterable[Request]) -> Iterator[Decoded]:
        """The tokens that follow each prompt, in the order in which they are chosen.

        Requests are numbered from 0 in their order. The next one is taken when a slot is free.
        """
        texts: list[_Text] = []
        arriving = enumerate(requests)
        while True:
            texts = [text for text in texts if text.remaining]
            taken = {text.slot for text in texts}
            free = [slot for slot in range(len(self._caches)) if slot not in taken]
            for slot, (number, request) in zip(free, arriving, strict=False):
                text = self._make_text(number, request, slot)
                texts.append(text)
                yield text.choose(*self._read_prompt(text))
            if not texts:
                return
            if fed := [text for text in texts if text.remaining]:
                for text, logits, evaluations in zip(fed, *self._feed(fed), strict=True):
                    yield text.choose(logits, evaluations)

    def _make_text(self, number: int, request: Request, slot: int) -> _Text:
        check_prompt(self.room, request.prompt, f"prompt {number}")
        if request.max_new_tokens < 1:
            raise InputError(f"prompt {number}: found max_new_tokens = {request.max_new_tokens}, expected at least 1.")
        length = len(request.prompt)
        return _Text(number, request, slot, min(request.max_new_tokens, self.room - length), length - 1)

    def _read_prompt(self, text: _Text) -> tuple[Tensor, list[int]]:
        """Logits (V,) after a prompt, and the evaluations of its last token in each group."""
        prompt = text.request.prompt
        tokens, positions = tensor_on(prompt, self._positions.device)[None], self._positions[: len(prompt)]
        cache, noise = self._caches[text.slot], self._noise([text])
        hidden, exits = read_parallel(self._prompt_engine, cache, tokens, positions, len(prompt), noise)
        for group, one in enumerate(exits):
            self._exit_states[group, text.slot] = one.states[0, -1]
        return self.model.readout(hidden[-1:])[0], stack_counts(exits, tokens).evaluations[:, 0, -1].tolist()

    def _feed(self, texts: Sequence[_Text]) -> tuple[Tensor, list[list[int]]]:
        """Logits (N, V) after the last tokens of N texts, and the evaluations of each in every group."""
        model, positions = self._rows_model, [text.position for text in texts]
        columns = [text.token for text in texts], [text.slot for text in texts], positions
        tokens, slots, at = (tensor_on(column, self._positions.device) for column in columns)  # (N,) each
        store = RowsKV(self.stored, self._present, slots, at, max(positions) + 1)
        attend, noise = store.attend(0, torch.arange(len(texts), device=at.device)), self._noise(texts).at(positions)
        exits: list[GroupExit] = []

        def layer(number: int, hidden: Tensor) -> Tensor:
            return model.unlooped_layer(number, hidden, attend)

        def group(index: int, hidden: Tensor) -> Tensor:
            store.layers = model.config.groups[index]
            x0 = self._exit_states[index, slots] if self.options.warm_start else None
            exits.append(self._rows_engine.loop(index, hidden[:, None], noise, store, x0))  # N texts of one token
            states = self._exit_states[index, slots] = exits[-1].states[:, 0]
            return model.finish(index, states)

        hidden = run_stages(model, model.embed(tokens, at), layer, group)  # (N, C)
        return model.readout(hidden), stack_counts(exits, tokens[:, None]).evaluations[:, :, 0].T.tolist()

    def _noise(self, texts: Sequence[_Text]) -> EvaluationNoise:
        sequences = [text.request.sequence for text in texts]
        return EvaluationNoise.of(self.model.config, self.seed, sequences, self._drawn)


def given_texts(text: HeldOut, prompt: int, tokens: int) -> list[Request]:
    """A request for each held-out sequence: its first tokens, and as many after them as are decoded."""
    return [
        Request(ids[:prompt], tokens, lambda logits, position, ids=ids: ids[position], sequence=sequence)  # type: ignore[misc]
        for ids, sequence in zip(text.inputs[:, : prompt + tokens].tolist(), text.sequences, strict=True)
    ]
