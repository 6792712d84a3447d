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
from twoscale import config
from twoscale.data.batches import held_out_sequences
from twoscale.exits.criteria import ExitCriterion, configured_criteria, make_criterion
from twoscale.exits.inference import KVCache, LoopCounts, Decoder, CapturedSteps, distinct_slots, evaluate, evaluate_by_position, is_sequential, state_decoder
from twoscale.model.transformer import LoopedTransformer
from twoscale.model.noise import EvaluationNoise

Row = dict[str, object]
CHECK_SECONDS = 0.05  # least time that one timing of a check or a step lasts


def settings_grid(exits: config.ExitsConfig) -> list[tuple[str, float]]:
    """Every (criterion, threshold) of the configuration."""
    return [(name, threshold) for name, criterion in exits.criteria.items() for threshold in rule["thresholds"]]


def make_criteria(model: LoopedTransformer, exits: config.ExitsConfig) -> dict[tuple[str, float], ExitCriterion]:
    """The rule of every (criterion, threshold) of the configuration, the user's own among them."""
    known = configured_criteria(exits.criteria)
    return {
        (name, tau): make_criterion(name, tau, state_decoder(model, exits.readout), known)
        for name, tau in settings_grid(exits)
    }


def make_decoder(model: LoopedTransformer, exits: config.ExitsConfig, seed: int) -> Decoder:
    """A decoder with the cache and the loop steps of the configuration; it waits for its first criterion."""
    full, replay = make_criterion("fixed", exits.max_loops, model.readout), replays_steps(model, exits)
    return Decoder(model, full, exits.max_loops, seed, kv_slots=exits.kv_slots, replay=replay)


def replays_steps(model: LoopedTransformer, exits: config.ExitsConfig) -> bool:
    """Whether tokens that are fed one by one loop through captured steps."""
    return exits.cuda_graphs and model.token_embedding.weight.is_cuda


def held_out_text(shard: np.ndarray, block: int, exits: config.ExitsConfig) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Inputs and targets (N, T) for quality, and the prompts (R, T) for latency."""
    blocks = max(1, exits.quality_tokens // block)
    inputs, targets = held_out_sequences(shard, block, max(blocks, exits.latency_repeats))
    return (inputs[:blocks], targets[:blocks]), inputs[: exits.latency_repeats, : exits.latency_tokens]


class Reader:
    """Reads held-out blocks under exit criteria, in parallel where the configuration leaves that possible."""

    def __init__(self, model: LoopedTransformer, exits: config.ExitsConfig, seed: int) -> None:
        self.model, self.exits, self.seed = model, exits, seed

    @cached_property
    def _decoder(self) -> Decoder:
        """Made when it is needed: it holds a cache, and on CUDA captures every loop step."""
        return make_decoder(self.model, self.exits, self.seed)

    def is_parallel(self, criterion: ExitCriterion) -> bool:
        shares_slots = distinct_slots(self.exits.kv_slots, self.exits.max_loops) < self.exits.max_loops
        return not (shares_slots or is_sequential(criterion))

    def batch(self, criterion: ExitCriterion) -> int:
        """Blocks to read at a time."""
        return self.exits.quality_batch_size if self.is_parallel(criterion) else 1

    def read(self, criterion: ExitCriterion, inputs: Tensor, first: int) -> tuple[Tensor, LoopCounts]:
        """Logits (B, T, V) of blocks `first`, `first` + 1, … (B, T), and what each token spent."""
        if self.is_parallel(criterion):
            return evaluate_parallel(self.model, criterion, inputs, first, self.exits.max_loops, self.seed)
        return evaluate_by_position(self._decoder, inputs, criterion, range(first, first + len(inputs)))


def evaluate_parallel(
    model: LoopedTransformer, criterion: ExitCriterion, inputs: Tensor, first: int, budget: int, seed: int
) -> tuple[Tensor, LoopCounts]:
    """`Reader.read` in parallel, where every loop step has keys and values of its own."""
    noise = EvaluationNoise(seed, range(first, first + len(inputs)), model.config.context_length)
    return evaluate(model, inputs.to(model.token_embedding.weight.device), criterion, budget, noise)


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats (B, T) of each next token, from logits (B, T, V) and targets (B, T)."""
    return F.cross_entropy(logits.transpose(1, 2), targets.to(logits.device), reduction="none")


def measure_quality(
    model: LoopedTransformer, inputs: Tensor, targets: Tensor, exits: config.ExitsConfig, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "exit_quality": each held-out block (N, T) under every rule and threshold."""
    criteria = make_criteria(model, exits)
    reader = Reader(model, exits, seed)
    with progress.meter("quality", len(criteria) * inputs.numel(), "tokens") as bar:
        for (name, threshold), criterion in criteria.items():
            for start in range(0, len(inputs), reader.batch(criterion)):
                rows = slice(start, start + reader.batch(criterion))
                logits, counts = reader.read(criterion, inputs[rows], start)
                ce = cross_entropies(logits, targets[rows]).mean(1).tolist()
                for row in _quality_rows(ce, counts, start, inputs.shape[1], exits.max_loops, model.config.group_labels):
                    yield {"run": run, "criterion": name, "threshold": float(threshold)} | row
                bar.update(inputs[rows].numel())


def _quality_rows(
    ce: Sequence[float], counts: LoopCounts, first: int, tokens: int, budget: int, labels: Sequence[str]
) -> Iterator[Row]:
    for i in range(len(ce)):
        row = {"sequence": first + i, "tokens": tokens, "ce": ce[i], "ppl": math.exp(ce[i])}
        row["share_at_max_loops"] = _share(counts.evaluations[:, i] == budget)
        for kind in ("steps", "evaluations"):
            means = getattr(counts, kind)[:, i].float().mean(-1).tolist()
            row |= {f"{kind}_g{g}": mean for g, mean in zip(labels, means, strict=True)}
        yield row


def measure_latency(
    model: LoopedTransformer, prompts: Tensor, exits: config.ExitsConfig, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "exit_latency": repeat r forces prompt r (R, T) through the cache, token by token.

    All settings take turns within a repeat, each followed at once by its floor, the same evaluations
    without a criterion, so a drift of the machine meets all of them alike. One round before the first is thrown
    away.
    """
    criteria = make_criteria(model, exits)
    decoder = make_decoder(model, exits, seed)
    rounds = [(-1, prompts[0]), *enumerate(prompts)]
    synchronise = torch.cuda.synchronize if model.token_embedding.weight.is_cuda else _nothing
    with progress.meter("latency", len(rounds) * len(criteria), "settings") as bar:
        for repeat, prompt in rounds:
            tokens = prompt.tolist()
            for (name, threshold), criterion in criteria.items():
                latency, evaluations = _time_tokens(decoder, criterion, tokens, synchronise)
                floor, _ = _time_tokens(decoder, criterion, tokens, synchronise, evaluations)
                bar.update(1)
                if repeat < 0:
                    continue
                means = torch.tensor(evaluations, dtype=torch.float64).mean(0).tolist()
                row = {"run": run, "criterion": name, "threshold": float(threshold), "repeat": repeat}
                row |= {"tokens": len(tokens), "latency_ms": latency, "baseline_ms": floor}
                row["load_average"] = os.getloadavg()[0]
                yield row | {f"evaluations_g{g}": m for g, m in zip(model.config.group_labels, means, strict=True)}


@torch.inference_mode()
def measure_check_cost(
    model: LoopedTransformer, prompts: Tensor, exits: config.ExitsConfig, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "check_cost": a KL decision and a loop step, timed in turn on the same state (1, C).

    One token, as in decoding, the first of each prompt (R, T); one thread on CPU.
    """
    criterion = make_criterion("kl", 1.0, state_decoder(model, exits.readout))
    cache = KVCache(model.config, slots=1, like=model.token_embedding.weight)
    replayed = CapturedSteps(model, cache, budget=1) if replays_steps(model, exits) else None
    for repeat, prompt in enumerate(prompts):
        entered = model.embed(prompt[None, :1].to(model.token_embedding.weight.device))  # (1, 1, C)
        noise = EvaluationNoise(seed, [repeat], model.config.context_length)
        for group, label in enumerate(model.config.group_labels):
            x, injected = model.init_state(group, entered, noise)[0], model.project_input(group, entered)[0]
            step = partial(model.recur, group, x, injected, cache.attend(0, position=0))
            if replayed is not None:
                replayed.begin(0, injected)
                step = partial(replayed, group, 0, x)
            if is_sequential(criterion):
                criterion.decode.enter(group, cache.attend(0, position=0))
            check = partial(criterion.update, criterion.start(x), x)
            times = {"check_ms": _median_ms(check), "loop_step_ms": _median_ms(step)}
            yield {"run": run, "group": label, "repeat": repeat} | times


def _median_ms(call: Callable[[], object]) -> float:
    return 1e3 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=CHECK_SECONDS).median


def _share(mask: Tensor) -> float:
    return mask.double().mean().item() if mask.numel() else 0.0


def _time_tokens(
    decoder: Decoder, criterion: ExitCriterion, tokens: Sequence[int], synchronise: Callable, evaluations: Sequence | None = None
) -> tuple[float, list[list[int]]]:
    """Milliseconds per token, and the evaluations of each token in each group."""
    decoder.reset(criterion)
    synchronise()
    started = time.perf_counter()
    taken = [decoder.feed(token, evaluations[i] if evaluations else None)[1] for i, token in enumerate(tokens)]
    synchronise()
    return 1e3 * (time.perf_counter() - started) / len(tokens), taken


def _nothing() -> None:
    pass
