"""Text from a model: the next token chosen, greedy or sampled, plainly or with drafts of the model itself.

Self-speculative decoding: some tokens are drafted under a cheap exit criterion, then all of them are read again
under the rule of the decoder in one parallel pass, and the drafts that it would have chosen itself stay. The
draft shares weights and cache with the full model, since a token with few loops reads the keys and values
that earlier tokens had after as few (Geiping et al., their §6). What comes out is what decoding without
drafts gives, token for token, up to rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale import rng
from twoscale.errors import InputError
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.inference import Decoder, is_sequential


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: greedy at temperature 0, else at random, the same at the same (seed, position).

    top_k keeps the k likeliest tokens; of these top_p keeps the fewest whose probabilities sum to at least p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"temperature: found {self.temperature}, expected a number of at least 0.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k: found {self.top_k}, expected at least 1.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p: found {self.top_p}, expected a number above 0 and at most 1.")

    def choose(self, logits: Tensor, position: int) -> int:
        """The token at `position`, from the logits (V,) after the one before.

        The largest of log-probability plus Gumbel noise is a sample (Gumbel-max). Its noise belongs to the
        position, so a draft that is nearly right mostly draws the same token as the full model.
        """
        if self.temperature == 0:
            return int(logits.argmax())
        scaled, ids = (logits.double().cpu() / self.temperature).sort(descending=True, stable=True)
        scaled = scaled[: self.top_k]
        if self.top_p is not None:
            probabilities = scaled.softmax(0)
            before = probabilities.cumsum(0) - probabilities
            scaled = scaled[before < self.top_p]
        uniforms = torch.from_numpy(rng.stream(self.seed, "generation", position).random(len(logits)))
        gumbel = -(-uniforms.log()).log()
        return int(ids[(scaled + gumbel[ids[: len(scaled)]]).argmax()])


@dataclass(frozen=True)
class NewToken:
    """A token and what choosing it took: the evaluations of each group at the position before it."""

    id: int
    evaluations: tuple[int, ...]


@dataclass
class Speculation:
    """Drafts of `length` tokens under a cheap criterion, and what has become of them so far.

    passes: parallel passes that verified drafts; each gives its accepted drafts and one token more.
    """

    criterion: ExitCriterion
    length: int
    drafted: int = 0
    accepted: int = 0
    passes: int = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"drafts: found {self.length}, expected at least 1 drafted token.")

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that stayed."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def next_tokens(self, decoder: Decoder, pending: int, most: int, sampling: Sampling) -> list[NewToken]:
        """From 1 to `most` tokens that follow `pending`, which is not fed yet."""
        start = decoder.position
        drafts = self._draft(decoder, pending, min(self.length, most - 1), sampling)
        decoder.rewind(start)
        logits, counts = decoder.feed_parallel([pending, *drafts])
        new: list[NewToken] = []
        for row, evaluations in zip(logits, counts.evaluations[:, 0].T.tolist(), strict=True):
            new.append(NewToken(sampling.choose(row, start + 1 + len(new)), tuple(evaluations)))
            if drafts[len(new) - 1 : len(new)] != [new[-1].id]:  # another token, or no draft is left
                break
        decoder.rewind(start + len(new))
        self.passes += 1
        self.drafted += len(drafts)
        self.accepted += len(new) - 1
        return new

    def _draft(self, decoder: Decoder, pending: int, length: int, sampling: Sampling) -> list[int]:
        verifying, decoder.criterion = decoder.criterion, self.criterion
        drafts: list[int] = []
        for _ in range(length):
            logits, _ = decoder.feed(drafts[-1] if drafts else pending)
            drafts.append(sampling.choose(logits, decoder.position))
        decoder.criterion = verifying
        return drafts


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    most: int,
    sampling: Sampling,
    end_of_text: int | None = None,
    speculation: Speculation | None = None,
) -> Iterator[NewToken]:
    """Up to `most` tokens after `prompt`, one by one; the end of text is the last one if it comes.

    The text stops where it fills the model's block. The prompt is read under the decoder's rule too.
    """
    check_prompt(decoder, prompt)
    if speculation is not None:
        check_parallel(decoder)
    return _generate(decoder, prompt, most, sampling, end_of_text, speculation)


def check_parallel(decoder: Decoder) -> None:
    """Drafts are verified in one pass over several positions, which not every decoder can do."""
    if decoder.warm_start:
        raise InputError(
            "warm_start: found it together with drafts, expected one of them; no token can start from the state of the "
            "one before where several are verified in parallel."
        )
    if decoder.shares_slots:
        raise InputError(
            f"kv_slots: found {decoder.cache.slots} together with drafts, expected one of them; positions that share "
            "slots are computed one by one, and drafts are verified in parallel."
        )
    if is_sequential(decoder.criterion):
        raise InputError(
            "decoder: found remaining_layers together with drafts, expected head; predictions through the remaining "
            "layers are made one position after another, and drafts are verified in parallel."
        )


def check_prompt(decoder: Decoder, prompt: Sequence[int]) -> None:
    block = decoder.model.config.context_length
    if not prompt:
        raise InputError("prompt: found no token, expected at least one.")
    if len(prompt) >= block:
        raise InputError(
            f"prompt: found {len(prompt)} tokens, expected at most {block - 1}, so that one more fits into the model's "
            f"block of {block}."
        )


def _generate(
    decoder: Decoder,
    prompt: Sequence[int],
    most: int,
    sampling: Sampling,
    end_of_text: int | None,
    speculation: Speculation | None,
) -> Iterator[NewToken]:
    decoder.reset()
    left = min(most, decoder.model.config.context_length - len(prompt))
    logits, counts = decoder.prefill(prompt)
    new = [NewToken(sampling.choose(logits[-1], len(prompt)), tuple(counts.evaluations[:, 0, -1].tolist()))]
    while left:
        for token in new:
            yield token
            left -= 1
            if not left or token.id == end_of_text:
                return
        if speculation is not None:
            new = speculation.next_tokens(decoder, token.id, left, sampling)
            continue
        logits, evaluations = decoder.feed(token.id)
        new = [NewToken(sampling.choose(logits, decoder.position), tuple(evaluations))]
