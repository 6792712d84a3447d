"""Text generation: the choice of the next token, with and without self-speculative decoding.

Self-speculative decoding drafts some tokens under a cheap exit criterion, then reads all of them again under
the decoder's criterion in one parallel pass, and keeps the drafts that the decoder would have chosen itself.
The draft shares weights and cache with the full model, because a token with few loops reads the keys and
values that earlier tokens had after as few (Geiping et al., their §6). The text is the one that decoding
without drafts gives, token for token, up to rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twoscale.base import InputError
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.sampling import Sampling


@dataclass(frozen=True)
class NewToken:
    """A token and its cost: the evaluations of each group at the position before it."""

    id: int
    evaluations: tuple[int, ...]


@dataclass
class Speculation:
    """Drafts of `length` tokens under a cheap criterion, and how many of them were accepted so far.

    passes: parallel passes that verified drafts; each yields its accepted drafts and one more token.
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
        """Share of the drafted tokens that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def next_tokens(self, decoder: Decoder, pending: int, most: int, sampling: Sampling) -> list[NewToken]:
        """From 1 to `most` tokens that follow `pending`, which is not fed yet."""
        start = decoder.position  # the position of `pending`
        drafts = self._draft(decoder, pending, min(self.length, most - 1), sampling)
        # read the same positions again under the full criterion, in one pass, which overwrites their keys and values
        decoder.rewind(start)
        # row i: logits after `pending` and the first i drafts, from which the full criterion's own choice follows
        logits, counts = decoder.feed_parallel([pending, *drafts])
        new: list[NewToken] = []
        for row, evaluations in zip(logits, counts.evaluations[:, 0].T.tolist(), strict=True):
            new.append(NewToken(sampling.choose(row, start + 1 + len(new)), tuple(evaluations)))
            i = len(new) - 1
            # the rows after a wrong draft follow another text; its row has given the right token in its place
            if i == len(drafts) or drafts[i] != new[-1].id:
                break
        # `pending` and the accepted drafts stay in the cache; new[-1] is the next `pending`
        decoder.rewind(start + len(new))
        self.passes += 1
        self.drafted += len(drafts)
        self.accepted += len(new) - 1
        return new

    def _draft(self, decoder: Decoder, pending: int, length: int, sampling: Sampling) -> list[int]:
        full, decoder.criterion = decoder.criterion, self.criterion
        drafts: list[int] = []
        for _ in range(length):
            logits, _ = decoder.feed(drafts[-1] if drafts else pending)
            drafts.append(sampling.choose(logits, decoder.position))
        decoder.criterion = full
        return drafts


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    end_of_text: int | None = None,
    speculation: Speculation | None = None,
) -> Iterator[NewToken]:
    """Up to `max_new_tokens` tokens after `prompt`, one by one; an end of text is the last one.

    The text stops where it fills the model's context. The prompt is read under the decoder's criterion too.
    """
    check_prompt(decoder.model.config.context_length, prompt)
    if speculation is not None:
        check_parallel(decoder)
    decoder.reset()

    def new_tokens() -> Iterator[NewToken]:
        remaining = min(max_new_tokens, decoder.model.config.context_length - len(prompt))
        logits, counts = decoder.prefill(prompt)
        evaluations = counts.evaluations[:, 0, -1].tolist()
        new = [NewToken(sampling.choose(logits[-1], len(prompt)), tuple(evaluations))]
        while remaining:
            for token in new:
                yield token
                remaining -= 1
                if not remaining or token.id == end_of_text:
                    return
            if speculation is not None:
                new = speculation.next_tokens(decoder, new[-1].id, remaining, sampling)
                continue
            logits, evaluations = decoder.feed(new[-1].id)
            new = [NewToken(sampling.choose(logits, decoder.position), tuple(evaluations))]

    return new_tokens()


def check_parallel(decoder: Decoder) -> None:
    """Refuse a decoder that cannot verify drafts, which takes one pass over several positions."""
    if decoder.options.warm_start:
        raise InputError(
            "warm_start: cannot be combined with drafts, which are verified in parallel; "
            "no token can then start from the state of the previous one."
        )
    if decoder.shares_slots:
        raise InputError(
            f"kv_slots: found {decoder.cache.slots}, which cannot be combined with drafts; drafts are verified in "
            "parallel, but positions that share slots are computed one by one."
        )
    if decoder.is_sequential:
        raise InputError(
            "readout: found remaining_layers together with drafts, expected head; drafts are verified in parallel, and "
            "predictions through the remaining layers are computed position by position."
        )


def check_prompt(room: int, prompt: Sequence[int], name: str = "prompt") -> None:
    """Refuse a prompt that is empty or leaves no room for a token in a context of `room` tokens."""
    if not prompt:
        raise InputError(f"{name}: found no token, expected at least one.")
    if len(prompt) >= room:
        raise InputError(
            f"{name}: found {len(prompt)} tokens, expected at most {room - 1}, one fewer than model.context_length = "
            f"{room}."
        )
