"""What drafting with few loops is worth: acceptance and speed-up by the loops and the length of a draft.

    python tests/benchmarks/bench_speculative.py [--run demo] [--results results]

Greedy text at the full budget, plainly and with drafts, from the same prompts in turns; one thread, float32, time
is that of the thread on its processor. With drafts the text is the same but for rounding: where two texts part,
the table gives the gap between the two tokens' logits in the plain text's pass. Without a trained run the model
is an untrained one of the demo's size, whose drafts agree less or more than a trained one's: take the numbers
from a run.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from twoscale.exits.decoder import Decoder

from twoscale import config
from twoscale.data import tokens
from twoscale.data.batches import held_out_sequences
from twoscale.exits.criteria import make_criterion
from twoscale.exits.generation import Sampling, Speculation, generate
from twoscale.model.trained_run import open_run
from twoscale.model.transformer import LoopedTransformer, initialise

GREEDY = Sampling()
SEED = 0


def trained(results: Path, run: str, count: int, length: int) -> tuple[LoopedTransformer, list[list[int]]]:
    """The model of a run, and prompts from its held-out text."""
    model = open_run(results, run).model
    shard = tokens.open_shard(results / run / "data" / "val.bin", results / run / "data" / "tokens.json")
    inputs, _ = held_out_sequences(shard, model.config.context_length, count)
    return model, inputs[:, :length].tolist()


def untrained(count: int, length: int) -> tuple[LoopedTransformer, list[list[int]]]:
    settings = config.checked(config.preset("demo")).model
    prompts = torch.randint(settings.vocab_size, (count, length), generator=torch.Generator().manual_seed(SEED))
    return initialise(settings, SEED).eval().requires_grad_(False), prompts.tolist()


def timed(decoder: Decoder, prompt: list[int], most: int, speculation: Speculation | None) -> tuple[float, list[int]]:
    """Seconds and ids of one text."""
    started = time.thread_time()
    made = [token.id for token in generate(decoder, prompt, most, GREEDY, speculation=speculation)]
    return time.thread_time() - started, made


def gap_where_they_part(decoder: Decoder, prompt: list[int], plain: list[int], drafted: list[int]) -> float | None:
    """Difference of the logits of the first two tokens that differ; None where the texts are the same."""
    parted = next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=True)) if a != b), None)
    if parted is None:
        return None
    decoder.reset()
    decoder.prefill(prompt)
    for token in plain[:parted]:
        logits, _ = decoder.feed(token)
    return (logits[plain[parted]] - logits[drafted[parted]]).item()


def measure(
    model: LoopedTransformer, prompts: Sequence[list[int]], most: int, budget: int, grid: Sequence[tuple[int, int]]
) -> None:
    decoder = Decoder(model, make_criterion("fixed", budget, model.readout), budget, SEED)
    totals = {(loops, length): Speculation(make_criterion("fixed", loops, model.readout), length) for loops, length in grid}
    speed_ups, gaps = {setting: [] for setting in grid}, {setting: [] for setting in grid}
    timed(decoder, prompts[0], most, None)  # warm up
    for prompt in prompts:
        for setting, speculation in totals.items():
            plain_seconds, plain = timed(decoder, prompt, most, None)
            seconds, drafted = timed(decoder, prompt, most, speculation)
            speed_ups[setting].append(plain_seconds / seconds)
            gaps[setting].append(gap_where_they_part(decoder, prompt, plain, drafted))

    print("draft loops | draft tokens | accepted | tokens a pass | speed-up (least, most) | texts that part (gap)")
    for (loops, length), speculation in totals.items():
        ratios, parted = speed_ups[loops, length], [gap for gap in gaps[loops, length] if gap is not None]
        where = f"{len(parted)} of {len(prompts)}" + (f" ({max(map(abs, parted)):.1e})" if parted else "")
        per_pass = 1 + speculation.accepted / speculation.passes
        print(
            f"{loops:11} | {length:12} | {speculation.acceptance:8.0%} | {per_pass:13.2f}"
            f" | {statistics.median(ratios):8.2f} ({min(ratios):.2f}, {max(ratios):.2f}) | {where}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="demo")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--max-loops", type=int, default=30)
    parser.add_argument("--draft-loops", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[2, 4])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = arguments.prompts, arguments.prompt_tokens
    if (arguments.results / arguments.run / "checkpoints").is_dir():
        model, prompts = trained(arguments.results, arguments.run, *sizes)
        print(f"run {arguments.run}", end=", ")
    else:
        model, prompts = untrained(*sizes)
        print("untrained model of the demo's size", end=", ")
    print(f"budget {arguments.max_loops}, {arguments.prompts} texts of {arguments.tokens} tokens", flush=True)
    grid = [(loops, length) for loops in arguments.draft_loops for length in arguments.draft_tokens]
    measure(model, prompts, arguments.tokens, arguments.max_loops, grid)


if __name__ == "__main__":
    main()
