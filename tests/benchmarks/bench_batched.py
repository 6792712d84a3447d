"""Tokens per second of sequences that are decoded together, against one.

    python tests/benchmarks/bench_batched.py [--tokens 24] [--repeats 5] [--threads 2] [--run NAME --results FOLDER]

A model of width 256 with 12 layers, a vocabulary of 8192 and a context of 256 under the criterion `acceleration`
decodes given texts: 1, 2, 4, 8 and 16 sequences at once. All have the same exits, so the mean loops are equal but for
where the clock stops: at the end of the first sequence. Everything takes turns, with the same threads; printed are
medians of the repeats. The aim for 16 sequences is 4 times the tokens per second of one sequence, which `Decoder`
decodes alone. The floor is the time of the bare matrix products of the batch at the mean loops
(`twoscale.exits.products`).

Without --run the model is untrained and the text random: the time of a loop step does not depend on the values of the
weights, but the exits do, and all tokens of an untrained model take nearly the same loops, so there is no slowest one
to wait for. With --run they are those of a trained run on its held-out text. --tau chooses the threshold, and mean and
spread of the evaluations are printed.
"""

import statistics
import time
from collections import defaultdict
from pathlib import Path

import torch
from common import options

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
SIZE = {"num_layers": 12, "num_heads": 8, "hidden_size": 256, "context_length": 256}


def untrained() -> LoopedModel:
    values = config.preset("paper")
    values["model"] |= SIZE
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


def main() -> None:
    arguments = options(__doc__, tokens=24, repeats=5, threads=2, tau=1e-2, run=None, results=Path("results"))
    torch.set_num_threads(arguments.threads)
    if arguments.run is None:
        model = untrained()
        text = random_text(model, arguments.tokens)
    else:
        model = open_run(arguments.results / arguments.run).model
        text = held_out_text(arguments.results, arguments.run, model)
    criterion = make_criterion("acceleration", arguments.tau)
    room = BatchOptions(room=PROMPT + arguments.tokens)
    decoder = BatchedDecoder(model, criterion, MAX_LOOPS, SEED, SEQUENCES[-1], room)
    times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)  # seconds per token
    loops = torch.zeros(0)  # evaluations of each token under 16 sequences (tokens, G)
    for repeat in range(-1, arguments.repeats):
        found = {("alone", 1): seconds_alone(model, criterion, text, arguments.tokens)}
        for number in SEQUENCES:
            timed = time_sequences(decoder, given_texts(text[:number], PROMPT, arguments.tokens))
            found["together", number] = timed.seconds / len(timed.evaluations)
            loops = torch.tensor(timed.evaluations, dtype=torch.float64)
        found["products", SEQUENCES[-1]] = seconds_of_products(model, loops.mean(0).round().int().tolist())
        if repeat >= 0:  # the first turn is a warm-up
            for key, seconds in found.items():
                times[key].append(seconds)
    speeds = {key: 1 / statistics.median(values) for key, values in times.items()}
    for (what, number), speed in speeds.items():
        print(f"{what}, {number} sequences: {speed:.1f} tokens/s", flush=True)
    spread = zip(loops.mean(0).tolist(), loops.std(0).tolist(), strict=True)
    print("evaluations per token:", ", ".join(f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in spread))
    most = speeds["together", SEQUENCES[-1]]
    print(f"{SEQUENCES[-1]} sequences against one alone: {most / speeds['alone', 1]:.2f}, aim 4")
    print(f"floor against {SEQUENCES[-1]} sequences: {speeds['products', SEQUENCES[-1]] / most:.2f}")


if __name__ == "__main__":
    main()
