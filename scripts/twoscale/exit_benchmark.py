"""Quality and latency of exit rules on the same held-out text (paper §4, App. D)."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.benchmark import Timer

from twoscale import progress, settings
from twoscale.exits import Rule, configured_rules, make_rule
from twoscale.inference import Counts, Decoder, evaluate
from twoscale.model import LoopedTransformer
from twoscale.noise import EvaluationNoise

Row = dict[str, object]
CHECK_SECONDS = 0.05  # least time that one timing of a check or a step lasts


def settings_grid(exits: settings.Exits) -> list[tuple[str, float]]:
    """Every (rule, threshold) of the configuration."""
    return [(name, threshold) for name, rule in exits.rules.items() for threshold in rule["thresholds"]]


def make_rules(model: LoopedTransformer, exits: settings.Exits) -> dict[tuple[str, float], Rule]:
    """The rule of every (rule, threshold) of the configuration, the user's own among them."""
    known = configured_rules(exits.rules)
    return {(name, tau): make_rule(name, tau, model.decode, known) for name, tau in settings_grid(exits)}


def measure_quality(
    model: LoopedTransformer, inputs: Tensor, targets: Tensor, exits: settings.Exits, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "exit_quality": each held-out block (N, T) under every rule and threshold."""
    rules = make_rules(model, exits)
    with progress.meter("quality", len(rules) * inputs.numel(), "tokens") as bar:
        for (name, threshold), rule in rules.items():
            for start in range(0, len(inputs), exits.quality_batch):
                rows = slice(start, start + exits.quality_batch)
                for row in _quality_rows(model, rule, inputs[rows], targets[rows], start, exits.budget, seed):
                    yield {"run": run, "rule": name, "threshold": float(threshold)} | row
                bar.update(inputs[rows].numel())


def _quality_rows(
    model: LoopedTransformer, rule: Rule, inputs: Tensor, targets: Tensor, first: int, budget: int, seed: int
) -> Iterator[Row]:
    _, losses, counts = read_text(model, rule, inputs, targets, first, budget, seed)
    ce = losses.mean(1).tolist()
    for i in range(len(inputs)):
        row = {"sequence": first + i, "tokens": inputs.shape[1], "ce": ce[i]}
        row["ppl"] = math.exp(row["ce"])
        row["share_at_budget"] = _share(counts.evaluations[:, i] == budget)
        for kind in ("steps", "evaluations"):
            means = getattr(counts, kind)[:, i].float().mean(-1).tolist()
            row |= {f"{kind}_g{g}": mean for g, mean in zip(model.settings.group_labels, means, strict=True)}
        yield row


def read_text(
    model: LoopedTransformer, rule: Rule, inputs: Tensor, targets: Tensor, first: int, budget: int, seed: int
) -> tuple[Tensor, Tensor, Counts]:
    """Held-out blocks `first`, `first` + 1, … (B, T) under a rule: logits (B, T, V), cross-entropies (B, T), counts."""
    device = model.token_embedding.weight.device
    noise = EvaluationNoise(seed, range(first, first + len(inputs)), model.settings.block)
    logits, counts = evaluate(model, inputs.to(device), rule, budget, noise)
    losses = F.cross_entropy(logits.transpose(1, 2), targets.to(device), reduction="none")
    return logits, losses, counts


def measure_latency(
    model: LoopedTransformer, prompts: Tensor, exits: settings.Exits, seed: int, run: str
) -> Iterator[Row]:
    """Rows of the table "exit_latency": repeat r forces prompt r (R, T) through the cache, token by token.

    All settings take turns within a repeat, each followed at once by its floor, the same evaluations
    without a rule, so a drift of the machine meets all of them alike. One round before the first is thrown
    away.
    """
    rules = make_rules(model, exits)
    decoder = Decoder(model, next(iter(rules.values())), exits.budget, seed)
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


@torch.no_grad()
def measure_check_cost(model: LoopedTransformer, prompts: Tensor, seed: int, run: str) -> Iterator[Row]:
    """Rows of the table "check_cost": a KL decision and a loop step, timed in turn on the same state (1, C).

    One token, as in decoding, the first of each prompt (R, T); one thread on CPU.
    """
    rule = make_rule("kl", 1.0, model.decode)
    for repeat, prompt in enumerate(prompts):
        entered = model.embed(prompt[None, :1].to(model.token_embedding.weight.device))  # (1, 1, C)
        noise = EvaluationNoise(seed, [repeat], model.settings.block)
        for group, label in enumerate(model.settings.group_labels):
            x, injected = model.enter(group, entered, noise), model.inject(group, entered)
            names = {"model": model, "rule": rule, "group": group, "x": x, "injected": injected}
            names["state"] = rule.start(x[0])
            times = {
                "check_ms": _median_ms("rule.update(state, x[0])", names),
                "step_ms": _median_ms("model.step(group, x, injected)", names),
            }
            yield {"run": run, "group": label, "repeat": repeat} | times


def _median_ms(statement: str, names: dict) -> float:
    return 1e3 * Timer(statement, globals=names).blocked_autorange(min_run_time=CHECK_SECONDS).median


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
