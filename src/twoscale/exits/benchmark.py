"""Quality and latency of exit rules on the same held-out text (paper §4, App. D)."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.benchmark import Timer

from twoscale import progress
from twoscale.config import sections
from twoscale.data.batches import held_out_sequences
from twoscale.exits.criteria import Rule, configured_rules, make_rule
from twoscale.exits.inference import Cache, Counts, Decoder, LoopSteps, distinct_slots, evaluate, evaluate_by_position, reads_one_by_one, state_decoder
from twoscale.model.transformer import LoopedTransformer
from twoscale.model.noise import EvaluationNoise

Row = dict[str, object]
CHECK_SECONDS = 0.05  # least time that one timing of a check or a step lasts


def settings_grid(exits: sections.Exits) -> list[tuple[str, float]]:
    """Every (rule, threshold) of the configuration."""
    return [(name, threshold) for name, rule in exits.rules.items() for threshold in rule["thresholds"]]


def make_rules(model: LoopedTransformer, exits: sections.Exits) -> dict[tuple[str, float], Rule]:
    """The rule of every (rule, threshold) of the configuration, the user's own among them."""
    known = configured_rules(exits.rules)
    return {
        (name, tau): make_rule(name, tau, state_decoder(model, exits.decoder), known)
        for name, tau in settings_grid(exits)
    }


def make_decoder(model: LoopedTransformer, exits: sections.Exits, seed: int) -> Decoder:
    """A decoder with the cache and the loop steps of the configuration; it waits for its first rule."""
    full, replay = make_rule("fixed", exits.budget, model.decode), replays_steps(model, exits)
    return Decoder(model, full, exits.budget, seed, kv_slots=exits.kv_slots, replay=replay)


def replays_steps(model: LoopedTransformer, exits: sections.Exits) -> bool:
    """Whether tokens that are fed one by one loop through captured steps."""
    return exits.cuda_graphs and model.token_embedding.weight.is_cuda


def held_out_text(shard: np.ndarray, block: int, exits: sections.Exits) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Inputs and targets (N, T) for quality, and the prompts (R, T) for latency."""
    blocks = max(1, exits.quality_tokens // block)
    inputs, targets = held_out_sequences(shard, block, max(blocks, exits.latency_repeats))
    return (inputs[:blocks], targets[:blocks]), inputs[: exits.latency_repeats, : exits.latency_tokens]


class Reader:
    """Reads held-out blocks under exit rules, in parallel where the configuration leaves that possible."""

    def __init__(self, model: LoopedTransformer, exits: sections.Exits, seed: int) -> None:
        self.model, self.exits, self.seed = model, exits, seed

    @cached_property
    def _decoder(self) -> Decoder:
        """Made when it is needed: it holds a cache, and on CUDA captures every loop step."""
        return make_decoder(self.model, self.exits, self.seed)

    def reads_together(self, rule: Rule) -> bool:
        shares_slots = distinct_slots(self.exits.kv_slots, self.exits.budget) < self.exits.budget
        return not (shares_slots or reads_one_by_one(rule))

    def batch(self, rule: Rule) -> int:
        """Blocks to read at a time."""
        return self.exits.quality_batch if self.reads_together(rule) else 1

    def read(self, rule: Rule, inputs: Tensor, first: int) -> tuple[Tensor, Counts]:
        """Logits (B, T, V) of blocks `first`, `first` + 1, … (B, T), and what each token spent."""
        if self.reads_together(rule):
            return read_together(self.model, rule, inputs, first, self.exits.budget, self.seed)
        return evaluate_by_position(self._decoder, inputs, rule, range(first, first + len(inputs)))


def read_together(
    model: LoopedTransformer, rule: Rule, inputs: Tensor, first: int, budget: int, seed: int
) -> tuple[Tensor, Counts]:
    """`Reader.read` in parallel, where every loop step has keys and values of its own."""
    noise = EvaluationNoise(seed, range(first, first + len(inputs)), model.settings.block)
    return evaluate(model, inputs.to(model.token_embedding.weight.device), rule, budget, noise)


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats (B, T) of each next token, from logits (B, T, V) and targets (B, T)."""
    return F.cross_entropy(logits.transpose(1, 2), targets.to(logits.device), reduction="none")


def measure_quality(
    model: LoopedTransformer, inputs: Tensor, targets: Tensor, exits: sections.Exits, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "exit_quality": each held-out block (N, T) under every rule and threshold."""
    rules = make_rules(model, exits)
    reader = Reader(model, exits, seed)
    with progress.meter("quality", len(rules) * inputs.numel(), "tokens") as bar:
        for (name, threshold), rule in rules.items():
            for start in range(0, len(inputs), reader.batch(rule)):
                rows = slice(start, start + reader.batch(rule))
                logits, counts = reader.read(rule, inputs[rows], start)
                ce = cross_entropies(logits, targets[rows]).mean(1).tolist()
                for row in _quality_rows(ce, counts, start, inputs.shape[1], exits.budget, model.settings.group_labels):
                    yield {"run": run, "rule": name, "threshold": float(threshold)} | row
                bar.update(inputs[rows].numel())


def _quality_rows(
    ce: Sequence[float], counts: Counts, first: int, tokens: int, budget: int, labels: Sequence[str]
) -> Iterator[Row]:
    for i in range(len(ce)):
        row = {"sequence": first + i, "tokens": tokens, "ce": ce[i], "ppl": math.exp(ce[i])}
        row["share_at_budget"] = _share(counts.evaluations[:, i] == budget)
        for kind in ("steps", "evaluations"):
            means = getattr(counts, kind)[:, i].float().mean(-1).tolist()
            row |= {f"{kind}_g{g}": mean for g, mean in zip(labels, means, strict=True)}
        yield row


def measure_latency(
    model: LoopedTransformer, prompts: Tensor, exits: sections.Exits, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "exit_latency": repeat r forces prompt r (R, T) through the cache, token by token.

    All settings take turns within a repeat, each followed at once by its floor, the same evaluations
    without a rule, so a drift of the machine meets all of them alike. One round before the first is thrown
    away.
    """
    rules = make_rules(model, exits)
    decoder = make_decoder(model, exits, seed)
    rounds = [(-1, prompts[0]), *enumerate(prompts)]
    synchronise = torch.cuda.synchronize if model.token_embedding.weight.is_cuda else _nothing
    with progress.meter("latency", len(rounds) * len(rules), "settings") as bar:
        for repeat, prompt in rounds:
            tokens = prompt.tolist()
            for (name, threshold), rule in rules.items():
                latency, evaluations = _time_tokens(decoder, rule, tokens, synchronise)
                floor, _ = _time_tokens(decoder, rule, tokens, synchronise, evaluations)
                bar.update(1)
                if repeat < 0:
                    continue
                means = torch.tensor(evaluations, dtype=torch.float64).mean(0).tolist()
                row = {"run": run, "rule": name, "threshold": float(threshold), "repeat": repeat}
                row |= {"tokens": len(tokens), "latency_ms": latency, "floor_ms": floor}
                row["load_average"] = os.getloadavg()[0]
                yield row | {f"evaluations_g{g}": m for g, m in zip(model.settings.group_labels, means, strict=True)}


@torch.inference_mode()
def measure_check_cost(
    model: LoopedTransformer, prompts: Tensor, exits: sections.Exits, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "check_cost": a KL decision and a loop step, timed in turn on the same state (1, C).

    One token, as in decoding, the first of each prompt (R, T); one thread on CPU.
    """
    rule = make_rule("kl", 1.0, state_decoder(model, exits.decoder))
    cache = Cache(model.settings, slots=1, like=model.token_embedding.weight)
    replayed = LoopSteps(model, cache, budget=1) if replays_steps(model, exits) else None
    for repeat, prompt in enumerate(prompts):
        entered = model.embed(prompt[None, :1].to(model.token_embedding.weight.device))  # (1, 1, C)
        noise = EvaluationNoise(seed, [repeat], model.settings.block)
        for group, label in enumerate(model.settings.group_labels):
            x, injected = model.enter(group, entered, noise)[0], model.inject(group, entered)[0]
            step = partial(model.step, group, x, injected, cache.attend(0, position=0))
            if replayed is not None:
                replayed.begin(0, injected)
                step = partial(replayed, group, 0, x)
            if reads_one_by_one(rule):
                rule.decode.enter(group, cache.attend(0, position=0))
            check = partial(rule.update, rule.start(x), x)
            times = {"check_ms": _median_ms(check), "step_ms": _median_ms(step)}
            yield {"run": run, "group": label, "repeat": repeat} | times


def _median_ms(call: Callable[[], object]) -> float:
    return 1e3 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=CHECK_SECONDS).median


def _share(mask: Tensor) -> float:
    return mask.double().mean().item() if mask.numel() else 0.0


def _time_tokens(
    decoder: Decoder, rule: Rule, tokens: Sequence[int], synchronise: Callable, evaluations: Sequence | None = None
) -> tuple[float, list[list[int]]]:
    """Milliseconds per token, and the evaluations of each token in each group."""
    decoder.reset(rule)
    synchronise()
    started = time.perf_counter()
    taken = [decoder.feed(token, evaluations[i] if evaluations else None)[1] for i, token in enumerate(tokens)]
    synchronise()
    return 1e3 * (time.perf_counter() - started) / len(tokens), taken


def _nothing() -> None:
    pass
