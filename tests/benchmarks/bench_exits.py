"""Whether exits cost what they should: their evaluations, and for `kl` its decoder, and nothing else.

    python tests/benchmarks/bench_exits.py [--width 256] [--device cpu]

1. Teacher-forced evaluation under a rule against the full budget B, beside what the evaluations alone would
   give, (F + sum_g E_g c_g) / (F + sum_g B c_g): F the time of single-pass layers and head, c_g that of one
   evaluation of group g on the whole batch, E_g its mean evaluations under the criterion. Aim: at most 1.25 times that.
2. The rule `kl`, at a threshold that it never meets, against the same loops without a rule plus the head and
   softmax that it asks for: teacher-forced measured apart, in decoding as calls between the steps, because a
   head measured apart would find its weights in the cache. Aim: at most 1.15.

All parts of a comparison run in turns; printed is the median of each turn's ratio.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale.exits.decoder import Decoder, ParallelKV, evaluate

from twoscale import config
from twoscale.dynamics import measures
from twoscale.exits.criteria import ExitCriterion, Fixed, make_criterion
from twoscale.model.transformer import LoopedTransformer, initialise

NEVER = 1e-30


class Stopwatch:
    """Times calls in turns: one list of seconds per name, one entry per round."""

    def __init__(self, calls: dict[str, Callable], rounds: int, device: str) -> None:
        synchronise, clock = torch.cuda.synchronize, time.perf_counter
        if device == "cpu":  # the time that the process spent, so that other work on the machine does not count
            synchronise, clock = (lambda: None), time.process_time
        for call in calls.values():
            call()  # warm up
        self.seconds = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                synchronise()
                started = clock()
                call()
                synchronise()
                self.seconds[name].append(clock() - started)

    def ratio(self, of_round: Callable[[dict[str, float]], float]) -> str:
        """Median and range over rounds of a ratio of the times of one round."""
        rounds = (dict(zip(self.seconds, times, strict=True)) for times in zip(*self.seconds.values(), strict=True))
        ratios = [of_round(times) for times in rounds]
        return f"{statistics.median(ratios):.3f} (from {min(ratios):.2f} to {max(ratios):.2f})"


@torch.no_grad()
def fixed_part(model: LoopedTransformer, tokens: Tensor) -> Tensor:
    """Single-pass layers and head alone."""
    hidden = model.embed(tokens)
    for stage, index in model.stages:
        if stage == "layer":
            hidden = model.unlooped_layer(index, hidden)
    return model.readout(hidden)


def one_evaluation(model: LoopedTransformer, group: int, tokens: Tensor) -> Callable:
    state = torch.randn(tokens.numel(), model.config.hidden_size, device=tokens.device)
    attend = ParallelKV(*tokens.shape).attend(0, torch.arange(tokens.numel(), device=tokens.device))

    @torch.no_grad()
    def call() -> Tensor:
        return model.recur(group, state, state, attend)

    return call


@torch.no_grad()
def thresholds(model: LoopedTransformer, tokens: Tensor, noise, budget: int, shares: list[float]) -> dict:
    """(criterion, share) -> a threshold that this share of the statistics of full loops is under."""
    states = {}
    for place, hidden in model.walk(tokens[:1], [budget] * len(model.config.groups), noise):
        if place.stage == "loop":
            states.setdefault(place.group, []).append(hidden)
    updates = [[after - before for before, after in pairwise(x)] for x in states.values()]
    values = {
        "step_norm": [measures.norm(u) for group in updates for u in group],
        "acceleration": [measures.acceleration(u, v) for group in updates for v, u in pairwise(group)],
    }
    return {
        (name, share): torch.cat([v.flatten() for v in sizes]).quantile(share).item()
        for name, sizes in values.items()
        for share in shares
    }


def cost_follows_evaluations(model, tokens, noise, budget, rounds, device) -> None:
    full = Fixed(budget, model.readout)
    for (name, _), tau in thresholds(model, tokens, noise, budget, [0.4, 0.8]).items():
        criterion = make_criterion(name, tau, model.readout)
        _, counts = evaluate(model, tokens, criterion, budget, noise)
        evaluations = counts.evaluations.double().mean((1, 2)).tolist()
        calls = {
            "criterion": lambda criterion=criterion: evaluate(model, tokens, criterion, budget, noise),
            "full": lambda: evaluate(model, tokens, full, budget, noise),
            "fixed": lambda: fixed_part(model, tokens),
        }
        calls |= {str(group): one_evaluation(model, group, tokens) for group in range(len(model.config.groups))}

        def excess(t, evaluations=evaluations):
            owed = t["fixed"] + sum(e * t[str(group)] for group, e in enumerate(evaluations))
            whole = t["fixed"] + sum(budget * t[str(group)] for group in range(len(evaluations)))
            return t["criterion"] / t["full"] / (owed / whole)

        watch = Stopwatch(calls, rounds, device)
        spent = ", ".join(f"{e:.1f}" for e in evaluations)
        print(f"{name}, {spent} of {budget} evaluations: time over full {watch.ratio(lambda t: t['rule'] / t['full'])}")
        print(f"  over what the evaluations give: {watch.ratio(excess)}, aim 1.25", flush=True)


def kl_pays_for_its_decoder(model, tokens, noise, budget, rounds, device) -> None:
    groups = len(model.config.groups)
    states = torch.randn(tokens.numel(), model.config.hidden_size, device=device)

    @torch.no_grad()
    def decoded(rows: int) -> Tensor:
        return model.readout(states[:rows]).softmax(-1)

    kl, full = make_criterion("kl", NEVER, model.readout), Fixed(budget, model.readout)
    watch = Stopwatch(
        {
            "kl": lambda: evaluate(model, tokens, kl, budget, noise),
            "loops": lambda: evaluate(model, tokens, full, budget, noise),
            "decoder": lambda: decoded(len(states)),
        },
        rounds,
        device,
    )
    checks = groups * (budget + 1)
    price = watch.ratio(lambda t: t["kl"] / (t["loops"] + checks * t["decoder"]))
    print(f"kl, teacher-forced, over loops + head + softmax: {price}, aim 1.15", flush=True)

    text = tokens[0, :16].tolist()
    decoder = Decoder(model, full, budget, seed=0, replay=False)  # a replay calls no hooks

    def decode(criterion: ExitCriterion, evaluations=None) -> None:
        decoder.reset(criterion)
        for token in text:
            decoder.feed(token, evaluations)

    def decode_one(*_) -> None:
        decoded(1)

    def loops_that_are_decoded() -> None:
        """Head and softmax after every step, where they find the caches as the rule does, and for each x^0."""
        hooks = [group.register_forward_hook(decode_one) for group in model.groups]
        decode(full, [budget] * groups)
        for hook in hooks:
            hook.remove()
        for _ in range(len(text) * groups):
            decoded(1)

    watch = Stopwatch({"kl": lambda: decode(kl), "peer": loops_that_are_decoded}, rounds, device)
    price = watch.ratio(lambda t: t["kl"] / t["peer"])
    print(f"kl, decoding, over loops + head + softmax: {price}, aim 1.15", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max-loops", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    chosen = config.ModelConfig(
        num_layers=8, heads=arguments.heads, hidden_size=arguments.width, context_length=arguments.block,
        vocab_size=arguments.vocabulary, groups=((4,), (5, 6), (7,)), mean_loops=12, loops_sigma=0.5,
        sandwich="post_residual", state_init="noise", loop_noise=0.0, adapter_init="random", exit_norm="none",
    )  # fmt: skip
    model = initialise(chosen, 0).to(arguments.device)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(chosen.vocab_size, (arguments.batch, chosen.context_length), generator=generator).to(arguments.device)
    drawn = torch.randn(arguments.batch, chosen.context_length, chosen.hidden_size, generator=generator).to(arguments.device)

    def noise(group: int, k: int, like: Tensor) -> Tensor:
        """Drawn before the clock starts."""
        return drawn[: like.shape[0], : like.shape[1]]

    print(
        f"{arguments.device}, width {chosen.hidden_size}, {arguments.batch} x {chosen.context_length} tokens, "
        f"vocabulary {chosen.vocab_size}, budget {arguments.max_loops}"
    )
    common = (model, tokens, noise, arguments.max_loops, arguments.rounds, arguments.device)
    cost_follows_evaluations(*common)
    kl_pays_for_its_decoder(*common)


if __name__ == "__main__":
    main()
