"""Self-speculative decoding

    python tests/benchmarks/bench_speculative.py [--run demo] [--results results]

The finished demo generates greedy text at 30 loops, with drafts and without. Four prompts come from its held-out text;
each text has 48 tokens. The CPU time of one thread is measured. Both texts must be the same, up to rounding.
"""

import time
from pathlib import Path

import torch
from common import not_measured, options, record

from twoscale import config
from twoscale.data.batches import open_held_out
from twoscale.exits.criteria import make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.generate import Sampling, Speculation, generate
from twoscale.model.interface import LoopedModel
from twoscale.model.trained_run import open_run
from twoscale.model.transformer import initialise

SEED = 0
ROUNDING = 1e-4  # largest gap between the logits of two tokens that rounding may exchange


def trained_model(results: Path, run: str, count: int, length: int) -> tuple[LoopedModel, list[list[int]]]:
    """The model of a run, and prompts from its held-out text."""
    model, data = open_run(results / run).model, results / run / "data"
    held_out = open_held_out(data / "val.bin", data / "tokens.json", model.config, count)
    return model, held_out.inputs[:, :length].tolist()


def untrained_model(count: int, length: int) -> tuple[LoopedModel, list[list[int]]]:
    """To try the script: an untrained model and random prompts."""
    tiny = config.checked(config.preset("tiny")).model
    prompts = torch.randint(tiny.vocab_size, (count, length), generator=torch.Generator().manual_seed(SEED))
    return initialise(tiny, SEED).eval().requires_grad_(False), prompts.tolist()


def timed(
    decoder: Decoder, prompt: list[int], max_new_tokens: int, speculation: Speculation | None = None
) -> tuple[float, list[int]]:
    """Seconds and ids of one text."""
    started = time.thread_time()
    ids = [token.id for token in generate(decoder, prompt, max_new_tokens, Sampling(), speculation=speculation)]
    return time.thread_time() - started, ids


def check_same(decoder: Decoder, prompt: list[int], plain: list[int], drafted: list[int]) -> None:
    """Ends the benchmark where two texts differ in a token whose logits do not nearly tie."""
    first = next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=True)) if a != b), None)
    if first is None:
        return
    decoder.reset()
    logits = decoder.prefill(prompt)[0][-1]
    for token in plain[:first]:
        logits, _ = decoder.feed(token)
    if (gap := (logits[plain[first]] - logits[drafted[first]]).abs().item()) > ROUNDING:
        raise SystemExit(f"token {first} differs with drafts: the logits are {gap:.1e} apart, expected {ROUNDING:.0e}")


def measure(decoder: Decoder, prompts: list[list[int]], max_new_tokens: int, loops: int, length: int) -> None:
    """Speed-up and acceptance of drafts of `length` tokens at this number of loops."""
    speculation, speed_ups = Speculation(make_criterion("fixed", loops), length), []
    timed(decoder, prompts[0], max_new_tokens)  # warm up
    for prompt in prompts:
        plain_seconds, plain = timed(decoder, prompt, max_new_tokens)
        seconds, drafted = timed(decoder, prompt, max_new_tokens, speculation)
        speed_ups.append(plain_seconds / seconds)
        check_same(decoder, prompt, plain, drafted)
    name = f"drafts of {length} tokens at {loops} loops"
    record(f"{name}, speed-up", speed_ups)
    record(f"{name}, accepted", [100 * speculation.acceptance], "%")


def main() -> None:
    smoke = {"prompts": 2, "prompt_tokens": 4, "tokens": 6, "max_loops": 4, "draft_loops": [2], "draft_tokens": [2]}
    numbers = {"prompts": 4, "prompt_tokens": 16, "tokens": 48, "max_loops": 30}
    drafts = {"draft_loops": [1, 2, 4, 8], "draft_tokens": [2, 4, 8]}
    arguments = options(__doc__, smoke, run="demo", results=Path("results"), **numbers, **drafts)
    sizes = arguments.prompts, arguments.prompt_tokens
    if not arguments.smoke and not (arguments.results / arguments.run / "checkpoints").is_dir():
        return not_measured("drafts", f"{arguments.results / arguments.run} is no finished run: make")
    torch.set_num_threads(1)
    model, prompts = (
        untrained_model(*sizes) if arguments.smoke else trained_model(arguments.results, arguments.run, *sizes)
    )
    decoder = Decoder(model, make_criterion("fixed", arguments.max_loops), arguments.max_loops, SEED)
    for length in arguments.draft_tokens:
        for loops in arguments.draft_loops:
            measure(decoder, prompts, arguments.tokens, loops, length)
    return None


if __name__ == "__main__":
    main()
