"""The lens: what the states of all loop steps predict, also far beyond the loops of training.

A state x^k of a group is decoded as the model would continue with it: all tokens of a sequence leave the group with
their x^k and pass the stages behind it. Groups before and behind it run the same number of loop steps whatever k is.
At k equal to that number, a state of any group predicts what the model predicts at uniform loops.

The logit lens (nostalgebraist 2020) applies the head alone. Here the remaining layers come first, as in Geiping et al.,
`predict_from_latents`, because the head has been trained on their output only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twoscale import progress
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.exits.readout import stages_behind
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import Attend, CausalAttention, LoopedModel, Noise, Stage
from twoscale.model.loss import cross_entropies, entropies, ranks

Row = dict[str, object]
LOGITS_AT_A_TIME = 2**24  # limits the memory of the predictions


@dataclass(frozen=True)
class Pass:
    """Whole sequences on their way through a model, stage by stage, with `loops` loop steps of every group."""

    model: LoopedModel
    loops: int
    noise: Noise
    attend: Attend

    @classmethod
    def of(cls, checkpoint: LoadedCheckpoint, tokens: Tensor, sequences: Sequence[int], loops: int) -> "Pass":
        """For token ids (B, T) with the noise of the held-out sequences of these numbers."""
        return cls(checkpoint.model, loops, checkpoint.noise(sequences), CausalAttention.of(tokens))

    def states(self, group: int, entered: Tensor, loops: int) -> Iterator[Tensor]:
        """x^0 … x^loops of a group that (B, T, C) enters, one after another."""
        injected = self.model.project_input(group, entered)
        state = self.model.init_state(group, entered, self.noise)
        yield state
        for k in range(loops):
            noisy = self.model.add_noise(group, k, state, self.noise)
            state = self.model.recur(group, k, noisy, injected, self.attend)
            yield state

    def run(self, stages: Iterable[Stage], hidden: Tensor) -> Tensor:
        """Hidden states (B, T, C) after these stages."""
        for stage in stages:
            if stage.is_group:
                for state in self.states(stage.group, hidden, self.loops):  # noqa: B007
                    pass  # only the last state is kept
                hidden = self.model.finish(stage.group, state)
            else:
                hidden = self.model.unlooped_layer(stage.layer, hidden, self.attend)
        return hidden

    def behind(self, group: int, state: Tensor) -> Tensor:
        """What the head reads if all tokens leave a group with the states (B, T, C)."""
        return self.run(stages_behind(self.model, group), self.model.finish(group, state))

    def entering(self, tokens: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each group with the hidden states that enter it (B, T, C), for token ids (B, T)."""
        hidden = self.model.embed(tokens, self.attend.positions)
        for stage in self.model.stages:
            if stage.is_group:
                yield stage.group, hidden
            hidden = self.run([stage], hidden)


@torch.no_grad()
def measure_lens(checkpoint: LoadedCheckpoint, text: HeldOut, config: ConfigSlice) -> Iterator[Row]:
    """Rows of the table "lens" without its column `run`; memory is that of one batch.

    Args:
        checkpoint: The model, its iteration and the seed of its noise.
        text: Held-out sequences.
        config: Its sections `model` and `lens`.
    """
    labels, steps = checkpoint.model.config.group_labels, config.lens_steps
    with progress.meter("lens", len(labels) * len(steps) * text.inputs.numel(), "tokens") as bar:
        for batch in text.batches(config.lens.batch_size):
            tokens = batch.inputs.to(checkpoint.device)
            passing = Pass.of(checkpoint, tokens, batch.sequences, config.lens_other_loops)
            for group, entered in passing.entering(tokens):
                measured = _measure_group(passing, group, entered, batch.targets, steps)
                point = {"iteration": checkpoint.iteration, "group": labels[group]}
                yield from (point | row for row in _rows(measured, batch, steps))
                bar.update(len(steps) * batch.inputs.numel())


def _measure_group(
    passing: Pass, group: int, entered: Tensor, targets: Tensor, steps: Sequence[int]
) -> dict[str, Tensor]:
    """Columns of the table "lens" per token, (S, B, T) each for S loop steps; NaN where one is undefined."""
    states = enumerate(passing.states(group, entered, steps[-1]))
    decoded = [measure_tokens(passing.model, passing.behind(group, x), targets) for k, x in states if k in steps]
    measured = {name: torch.stack([columns[name] for columns in decoded]) for name in decoded[0]}
    trained = steps.index(passing.model.config.typical_loops)
    right = measured["rank"] == 1
    measured["log_rank"] = measured.pop("rank").double().log()
    # x^0 has no loop step behind it, so nothing is lost by more of them
    lost = _from(1, lost_again(right[1:]))
    since = _from(trained + 1, right[trained] & ~right[trained + 1 :])
    return measured | {"right": right.double(), "lost": lost, "lost_since_mean": since}


def measure_tokens(model: LoopedModel, hidden: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Cross-entropy and entropy in nats, and rank of the right token: (B, T, C) and ids (B, T) -> (B, T) each."""
    rows = max(1, LOGITS_AT_A_TIME // model.config.vocab_size)
    parts: list[dict[str, Tensor]] = []
    for part, ids in zip(hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True):
        logits = model.readout(part)
        ce = cross_entropies(logits[None], ids[None])[0]
        parts.append({"ce": ce, "entropy": entropies(logits), "rank": ranks(logits, ids)})
    return {name: torch.cat([part[name] for part in parts]).unflatten(0, targets.shape) for name in parts[0]}


def lost_again(right: Tensor) -> Tensor:
    """Where a prediction is wrong now and was right at an earlier loop step: bool (S, ...) -> bool (S, ...)."""
    return right.int().cummax(0).values.bool() & ~right


def _from(first: int, values: Tensor) -> Tensor:
    """Values of later loop steps (S - first, ...) as floats (S, ...), NaN before the first."""
    return torch.cat([torch.full((first, *values.shape[1:]), torch.nan, device=values.device), values.double()])


def _rows(measured: dict[str, Tensor], batch: HeldOut, steps: Sequence[int]) -> Iterator[Row]:
    """One row per (loop step, sequence): means over the tokens of the sequence."""
    means = {name: values.double().mean(-1).tolist() for name, values in measured.items()}  # (S, B)
    for place, k in enumerate(steps):
        for i, key in enumerate(batch.keys):
            row = {name: values[place][i] for name, values in means.items()}
            yield {"k": k} | key | {"tokens": batch.inputs.shape[1]} | row
