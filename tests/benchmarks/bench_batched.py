"""Decoding several sequences together

    python tests/benchmarks/bench_batched.py [--tokens 24] [--repeats 5] [--threads 2] [--results results]

Given texts are decoded under `acceleration` at a threshold of 0.01, on two threads. A sequence has the same exits in a
batch and alone, so the mean loop counts are the same, except that timing stops at the end of the first sequence.
`Decoder` decodes the single sequence; the bare products are computed for 16 rows at the mean loop counts. The untrained
model has 12 layers of width 256. All of its tokens take nearly the same number of loops, so no token waits for a slower
one. The tokens of the finished demo take different numbers.
"""

import time
from pathlib import Path

import torch
from common import not_measured, options, record

from twoscale import config
from twoscale.data.batches import HeldOut, open_held_out
from twoscale.exits.batched import BatchedDecoder, BatchOptions, given_texts
from twoscale.exits.criteria import ExitCriterion, make_criterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.products import bare_products
from twoscale.model.interface import LoopedModel
from twoscale.model.trained_run import open_run
from twoscale.model.transformer import initialise
from twoscale.studies.throughput.measure import time_sequences

SEQUENCES = (1, 2, 4, 8, 16)
ALONE_EVERY = 4  # of the texts are decoded alone, too
MAX_LOOPS = 30
PROMPT = 16
SEED = 0
SIZE = {"num_layers": 12, "num_heads": 8, "context_length": 256}


def untrained(width: int) -> LoopedModel:
    values = config.preset("paper")
    values["model"] |= SIZE | {"hidden_size": width}
    values["tokenizer"] |= {"name": "bpe", "vocab_size": 8192}
    return initialise(config.checked(values).model, SEED).eval().requires_grad_(False)


def random_text(model: LoopedModel, tokens: int) -> HeldOut:
    source = torch.Generator().manual_seed(SEED)
    ids = torch.randint(model.config.vocab_size, (SEQUENCES[-1], PROMPT + tokens), generator=source)
    numbers = tuple(range(len(ids)))
    return HeldOut(ids, ids, numbers, numbers)


def held_out_text(results: Path, run: str, model: LoopedModel) -> HeldOut:
    data = results / run / "data"
    return open_held_out(data / "val.bin", data / "tokens.json", model.config, SEQUENCES[-1])


def seconds_alone(model: LoopedModel, criterion: ExitCriterion, text: HeldOut, tokens: int) -> float:
    """Seconds per token of the decoder of one sequence, the mean over some of the texts."""
    decoder = Decoder(model, criterion, MAX_LOOPS, SEED)
    seconds = 0.0
    for ids, sequence in zip(text.inputs[::ALONE_EVERY].tolist(), text.sequences[::ALONE_EVERY], strict=True):
        decoder.reset(sequence=sequence)
        decoder.prefill(ids[:PROMPT])
        started = time.perf_counter()
        for token in ids[PROMPT : PROMPT + tokens]:
            decoder.feed(token)
        seconds += time.perf_counter() - started
    return seconds / (tokens * len(text.sequences[::ALONE_EVERY]))


def seconds_of_products(model: LoopedModel, loops: list[int]) -> float:
    """Seconds per token of the bare products of the largest batch."""
    products = bare_products(model, loops, SEQUENCES[-1])
    products()
    started = time.perf_counter()
    products()
    return (time.perf_counter() - started) / SEQUENCES[-1]


def measure(label: str, model: LoopedModel, text: HeldOut, tokens: int, tau: float, repeats: int) -> None:
    criterion = make_criterion("acceleration", tau)
    decoder = BatchedDecoder(model, criterion, MAX_LOOPS, SEED, SEQUENCES[-1], BatchOptions(room=PROMPT + tokens))
    found = []  # of each turn: seconds per token alone, of each number of sequences, and of the bare products
    for _ in range(1 + repeats):
        alone, together = seconds_alone(model, criterion, text, tokens), []
        for number in SEQUENCES:
            timed = time_sequences(decoder, given_texts(text[:number], PROMPT, tokens))
            together.append(timed.seconds / len(timed.evaluations))
        loops = torch.tensor(timed.evaluations, dtype=torch.float64).mean(0)  # of a token of the largest batch (G,)
        found.append((alone, *together, seconds_of_products(model, loops.round().int().tolist())))
    alone, *together, products = zip(*found[1:], strict=True)  # the first turn is a warm-up
    print(f"evaluations per token: {', '.join(f'{mean:.2f}' for mean in loops)}")
    for number, times in zip(SEQUENCES, together, strict=True):
        aim = "≥ 4" if number == SEQUENCES[-1] else ""
        speed_ups = [one / many for one, many in zip(alone, times, strict=True)]
        record(f"{label}, {number} against one alone, tokens per second", speed_ups, aim=aim)
    over = [times / floor for times, floor in zip(together[-1], products, strict=True)]
    record(f"{label}, {SEQUENCES[-1]} against bare products, time", over)
    record(f"{label}, one alone", [1 / one for one in alone], "tokens/s")


def main() -> None:
    smoke = {"width": 32, "tokens": 2, "repeats": 1, "threads": 1}
    arguments = options(
        __doc__, smoke, width=256, tokens=24, repeats=5, threads=2, tau=1e-2, run="demo", results=Path("results")
    )
    torch.set_num_threads(arguments.threads)
    turns = {"tokens": arguments.tokens, "tau": arguments.tau, "repeats": arguments.repeats}
    model = untrained(arguments.width)
    measure(f"untrained, width {arguments.width}", model, random_text(model, arguments.tokens), **turns)
    if arguments.smoke or not (arguments.results / arguments.run / "checkpoints").is_dir():
        return not_measured(arguments.run, f"{arguments.results / arguments.run} is no finished run: make")
    model = open_run(arguments.results / arguments.run).model
    return measure(arguments.run, model, held_out_text(arguments.results, arguments.run, model), **turns)


if __name__ == "__main__":
    main()
