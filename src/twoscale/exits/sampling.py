"""The choice of the next token: the most likely one, or a sample."""

from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale.base import InputError
from twoscale.rng import stream


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: greedy at temperature 0, otherwise at random as a function of (seed, position).

    top_k keeps the k most likely tokens; of these top_p keeps the fewest whose probabilities sum to at least p.
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

        The largest of log-probability plus Gumbel noise is a sample (Gumbel-max). The noise is that
        of the position, so a draft that is nearly right mostly draws the same token as the full model.
        """
        if self.temperature == 0:
            return int(logits.argmax())
        scaled, ids = (logits.double().cpu() / self.temperature).sort(descending=True, stable=True)
        scaled = scaled[: self.top_k]
        if self.top_p is not None:
            probabilities = scaled.softmax(0)
            before = probabilities.cumsum(0) - probabilities
            scaled = scaled[before < self.top_p]
        uniforms = torch.from_numpy(stream(self.seed, "generation", position).random(len(logits)))
        gumbel = -(-uniforms.log()).log()
        return int(ids[(scaled + gumbel[ids[: len(scaled)]]).argmax()])
