"""Tokens per second and latency of sequences that are decoded together, on held-out text."""

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from twoscale.base import meter
from twoscale.config import ConfigSlice
from twoscale.data.batches import HeldOut
from twoscale.exits.batched import BatchedDecoder, BatchOptions, Request, given_texts
from twoscale.exits.benchmark import Row, available_cpus, make_criteria, turns
from twoscale.exits.probe import Probe, open_probe
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.interface import any_weight

if TYPE_CHECKING:
    from twoscale.model.checkpoint_job import CheckpointJob

HIGH_QUANTILE = 0.95


def run(job: "CheckpointJob") -> None:
    """Write the tables "throughput" and "throughput_loops"."""
    config = job.config
    torch.set_num_threads(config.throughput.cpu_threads)
    checkpoint, text = job.checkpoint(config.exits.dtype), job.held_out(config.throughput.sequences[-1])
    measured = measure_throughput(checkpoint, text, config, open_probe(job.optional("probe"), checkpoint))
    for name, rows in zip(("throughput", "throughput_loops"), measured, strict=True):
        job.write(name, rows)


@dataclass
class Timed:
    """Tokens and time of the decoding while all sequences were in flight.

    Attributes:
        seconds: Time of all of it.
        latencies: Seconds between two tokens of one sequence.
        evaluations: Of each token, (tokens, G).
    """

    seconds: float
    latencies: list[float]
    evaluations: list[tuple[int, ...]]

    def row(self) -> Row:
        return {
            "tokens": len(self.evaluations),
            "tokens_per_second": len(self.evaluations) / self.seconds,
            "latency_ms": 1e3 * float(np.median(self.latencies)),
            "latency_high_ms": 1e3 * float(np.quantile(self.latencies, HIGH_QUANTILE)),
        }


def measure_throughput(
    checkpoint: LoadedCheckpoint, text: HeldOut, config: ConfigSlice, probe: Probe | None = None
) -> tuple[list[Row], list[Row]]:
    """Rows of the tables "throughput" and "throughput_loops", on the first of the held-out sequences (B, T).

    The text of every sequence is given, so all criteria decode the same. Prompts are read untimed. Every criterion
    takes turns with every number of sequences, as in `benchmark.turns`.

    config: The sections `exits` (criteria, max_loops) and `throughput`, and the section `model`.
    probe: Fitted probe, for its criterion.
    """
    criteria = make_criteria(config.exits, probe)
    prompt, tokens = config.lengths
    decoder = BatchedDecoder(
        checkpoint.model,
        next(iter(criteria.values())),
        config.exits.max_loops,
        checkpoint.seed,
        config.throughput.sequences[-1],
        BatchOptions(room=prompt + tokens),
    )
    points = [(point, number) for point in criteria for number in config.throughput.sequences]
    order = turns(points, config.throughput.repeats)
    rows: list[Row] = []
    loops: list[Row] = []
    with meter("throughput", len(order), "points") as bar:
        for repeat, ((name, threshold), sequences) in order:
            decoder.reset(criteria[name, threshold])
            timed = time_sequences(decoder, given_texts(text[:sequences], prompt, tokens))
            bar.update(1)
            if repeat is None:
                continue
            key = {"criterion": name, "threshold": float(threshold), "sequences": sequences, "repeat": repeat}
            machine = {"load_average": os.getloadavg()[0], "cpus": available_cpus(), "threads": torch.get_num_threads()}
            rows.append(key | timed.row() | machine)
            means = np.mean(timed.evaluations, axis=0)
            groups = zip(checkpoint.model.config.group_labels, means, strict=True)
            loops += [key | {"group": group, "evaluations": float(mean)} for group, mean in groups]
    return rows, loops


def time_sequences(decoder: BatchedDecoder, requests: Sequence[Request]) -> Timed:
    """Time the tokens of all requests together, from the last prompt on until the first of the sequences ends.

    The decoder has a place for each of the requests, so their number is the number of sequences in flight.
    """
    synchronise = torch.cuda.synchronize if any_weight(decoder.model).is_cuda else lambda: None
    decoding = decoder.decode(requests)
    for _ in requests:  # the first tokens, which follow from the prompts
        next(decoding)
    synchronise()
    started = time.perf_counter()
    last: defaultdict[int, float] = defaultdict(lambda: started)
    latencies, evaluations = [], []
    for number, token, is_last in decoding:
        synchronise()
        now = time.perf_counter()
        latencies.append(now - last[number])
        evaluations.append(token.evaluations)
        last[number] = now
        if is_last:
            break
    return Timed(time.perf_counter() - started, latencies, evaluations)
