"""The gain of self-speculative decoding: acceptance and speed-up by the loops and the length of a draft.

    python tests/benchmarks/bench_speculative.py [--run demo] [--results results]

Greedy text at full loops with and without drafts, alternating, from the same prompts; one thread, float32; time is
the CPU time of the thread. With drafts the text is the same up to rounding: where two texts differ, the table gives
the gap between the logits of the two tokens without drafts. Without a trained run the model is an untrained one of
the demo's size, whose acceptance says nothing about a trained one: take the numbers from a run.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from common import options, spread

from twoscale import config
from twoscale.data.batches import open_held_out
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.generation import Speculation, generate
from twoscale.exits.sampling import Sampling
from twoscale.model.interface import LoopedModel
from twoscale.model.trained_run import open_run
from twoscale.model.transformer import initialise

GREEDY = Sampling()
SEED = 0


@dataclass
class DraftResult:
    """Drafts of one kind, and what they gave for each prompt.

    Attributes:
        loops: Loops of a drafted token.
        speculation: Length and acceptance of the drafts.
        speed_ups: Time without drafts over time with drafts.
        gaps: Gap of logits of each text that differs from the one without drafts.
    """

    loops: int
    speculation: Speculation
    speed_ups: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


def trained_model(results: Path, run: str, count: int, length: int) -> tuple[LoopedModel, list[list[int]]]:
    """The model of a run, and prompts from its held-out text."""
    model, data = open_run(results / run).model, results / run / "data"
    held_out = open_held_out(data / "val.bin", data / "tokens.json", model.config, count)
    return model, held_out.inputs[:, :length].tolist()


def untrained_model(count: int, length: int) -> tuple[LoopedModel, list[list[int]]]:
    """An untrained model of the demo's size, and random prompts."""
    demo = config.checked(config.preset("demo")).model
    prompts = torch.randint(demo.vocab_size, (count, length), generator=torch.Generator().manual_seed(SEED))
    return initialise(demo, SEED).eval().requires_grad_(False), prompts.tolist()


def timed(
    decoder: Decoder, prompt: list[int], max_new_tokens: int, speculation: Speculation | None = None
) -> tuple[float, list[int]]:
    """Seconds and ids of one text."""
    started = time.thread_time()
    ids = [token.id for token in generate(decoder, prompt, max_new_tokens, GREEDY, speculation=speculation)]
    return time.thread_time() - started, ids


def first_gap(decoder: Decoder, prompt: list[int], plain: list[int], drafted: list[int]) -> float | None:
    """Difference of the logits of the first two tokens that differ; None for equal texts."""
    first = next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=True)) if a != b), None)
    if first is None:
        return None
    decoder.reset()
    logits = decoder.prefill(prompt)[0][-1]
    for token in plain[:first]:
        logits, _ = decoder.feed(token)
    return (logits[plain[first]] - logits[drafted[first]]).item()


def measure(decoder: Decoder, prompts: Sequence[list[int]], max_new_tokens: int, results: list[DraftResult]) -> None:
    timed(decoder, prompts[0], max_new_tokens)  # warm up
    for prompt in prompts:
        for result in results:
            plain_seconds, plain = timed(decoder, prompt, max_new_tokens)
            seconds, drafted = timed(decoder, prompt, max_new_tokens, result.speculation)
            result.speed_ups.append(plain_seconds / seconds)
            gap = first_gap(decoder, prompt, plain, drafted)
            if gap is not None:
                result.gaps.append(gap)


def print_table(results: Sequence[DraftResult]) -> None:
    print("draft loops | draft tokens | accepted | tokens per pass | speed-up (range) | texts that differ (gap)")
    for result in results:
        speculation, speed_ups = result.speculation, result.speed_ups
        per_pass = 1 + speculation.accepted / speculation.passes
        gap = f" ({max(map(abs, result.gaps)):.1e})" if result.gaps else ""
        print(
            f"{result.loops:11} | {speculation.length:12} | {speculation.acceptance:8.0%} | {per_pass:15.2f}"
            f" | {spread(speed_ups)}"
            f" | {len(result.gaps)} of {len(speed_ups)}{gap}"
        )


def main() -> None:
    numbers = {"prompts": 4, "prompt_tokens": 16, "tokens": 48, "max_loops": 30}
    drafts = {"draft_loops": [1, 2, 4, 8, 16], "draft_tokens": [2, 4]}
    arguments = options(__doc__, run="demo", results=Path("results"), **numbers, **drafts)
    torch.set_num_threads(1)
    sizes = arguments.prompts, arguments.prompt_tokens
    if (arguments.results / arguments.run / "checkpoints").is_dir():
        model, prompts = trained_model(arguments.results, arguments.run, *sizes)
        print(f"run {arguments.run}", end=", ")
    else:
        model, prompts = untrained_model(*sizes)
        print("untrained model of the demo's size", end=", ")
    print(f"{arguments.max_loops} loops, {arguments.prompts} texts of {arguments.tokens} tokens", flush=True)
    results = [
        DraftResult(loops, Speculation(make_criterion("fixed", loops), length))
        for loops in arguments.draft_loops
        for length in arguments.draft_tokens
    ]
    decoder = Decoder(model, make_criterion("fixed", arguments.max_loops), arguments.max_loops, SEED)
    measure(decoder, prompts, arguments.tokens, results)
    print_table(results)


if __name__ == "__main__":
    main()
