"""Generate text from a run or a published model under an exit criterion.

    python scripts/generate.py --run demo --prompt "The loop" --criterion acceleration --tau 1e-3

The last checkpoint of a run is read. The text goes to standard output as it is generated, speed and
loops to standard error. Tokens are sampled at temperature 0.8 with a fixed seed, because the greedy
text of a small model repeats itself; --temperature 0 is greedy. The config is not read: the
checkpoint carries the model's config. With --speculative some tokens are drafted with few loop
steps and verified in one parallel pass; the text stays the same.
"""

import argparse
import codecs
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from twoscale.base import InputError, neutralise
from twoscale.config.criteria import check_threshold, counts_loops
from twoscale.data.tokenizer import load_tokenizer
from twoscale.exits.contract import load_criterion
from twoscale.exits.criteria import CRITERIA, ExitCriterion, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.jobs.machine import check_cuda
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.trained_run import TrainedRun, open_published_run, open_run
from twoscale.rng import stream

MAX_LOOPS = 30
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: greedy at temperature 0, otherwise at random.

    A sample is a function of (seed, position). top_k keeps the k most likely tokens; of these top_p
    keeps the fewest whose probabilities sum to at least p.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(
                f"temperature: found {self.temperature}, expected a number of at least 0."
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k: found {self.top_k}, expected at least 1.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p: found {self.top_p}, expected a number above 0 and at most 1.")

    def choose(self, logits: Tensor, position: int) -> int:
        """The token at `position`, from the logits (V,) after the one before.

        The largest of log-probability plus Gumbel noise is a sample. The noise is that of the
        position, so a draft that is nearly right mostly draws the same token as the full model.

        Logits of -inf rule tokens out. Raises InputError if the largest logit is not finite.
        """
        likeliest = int(logits.argmax())
        largest = logits[likeliest].item()
        if not math.isfinite(largest):
            raise InputError(
                f"logits at position {position}: found {largest}, expected finite numbers."
            )
        if self.temperature == 0:
            return likeliest
        # stable and on the host, so that equal logits have one order on all devices
        ordered, ids = logits.double().cpu().sort(descending=True, stable=True)
        # at most 0, so that no temperature is too small
        scaled = (ordered[: self.top_k] - ordered[0]) / self.temperature
        if self.top_p is not None:
            probabilities = scaled.softmax(0)
            before = probabilities.cumsum(0) - probabilities  # of all likelier tokens
            # the token with which the sum reaches p is kept, since the sum before it is smaller
            scaled = scaled[before < self.top_p]
        # one for each token id, so that top_k and top_p do not change the noise of a token
        uniforms = torch.from_numpy(stream(self.seed, "generation", position).random(len(logits)))
        # if u is uniform, -log(-log u) has Gumbel's distribution
        gumbel = -(-uniforms.log()).log()  # (V,)
        kept = ids[: len(scaled)]
        return int(kept[(scaled + gumbel[kept]).argmax()])


class NewToken(NamedTuple):
    """A token and its cost: the evaluations of each group at the position before it."""

    id: int
    evaluations: tuple[int, ...]


@dataclass
class Speculation:
    """Self-speculative decoding (Geiping et al., their §6): drafts under a cheap criterion.

    After `length` drafted tokens the decoder reads all of them again under its own criterion in one
    parallel pass, and keeps the drafts that it would have chosen itself. The draft shares weights
    and cache with the full model, because a token with few loops reads the keys and values that
    earlier tokens had after as few. The text is the one without drafts, token for token, up to
    rounding. Counted are drafts and those of them that were kept.
    """

    criterion: ExitCriterion
    length: int
    drafted: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"drafts: found {self.length}, expected at least 1 drafted token.")

    def next_tokens(
        self, decoder: Decoder, pending: int, most: int, sampling: Sampling
    ) -> list[NewToken]:
        """From 1 to `most` tokens that follow `pending`, which is not fed yet."""
        start = decoder.position  # of `pending`
        full = decoder.criterion
        decoder.criterion = self.criterion
        drafts: list[int] = []
        for _ in range(min(self.length, most - 1)):
            row, _ = decoder.feed(drafts[-1] if drafts else pending)  # (V,)
            drafts.append(sampling.choose(row, decoder.position))
        decoder.criterion = full
        # the same positions under the full criterion, which overwrites their keys and values
        decoder.rewind(start)
        # row i: logits after `pending` and the first i drafts, and so the full criterion's choice
        logits, counts = decoder.feed_parallel([pending, *drafts])
        evaluations = counts.evaluations[:, 0].T.tolist()  # (N, G)
        new: list[NewToken] = []
        for i, row in enumerate(logits):
            token = sampling.choose(row, start + 1 + i)
            new.append(NewToken(token, tuple(evaluations[i])))
            # the rows after a wrong draft follow another text; its row has given the right token
            if i == len(drafts) or drafts[i] != token:
                break
        # `pending` and the accepted drafts stay in the cache; new[-1] is the next `pending`
        decoder.rewind(start + len(new))
        self.drafted += len(drafts)
        self.accepted += len(new) - 1
        return new


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    end_of_text: int | None = None,
    speculation: Speculation | None = None,
) -> Iterator[NewToken]:
    """Up to `max_new_tokens` tokens after `prompt`, one by one; an end of text is the last one.

    The text stops where it fills the model's context. The prompt is read under the decoder's
    criterion too.
    """
    room = decoder.model.config.context_length
    if not prompt:
        raise InputError("prompt: found no token, expected at least one.")
    if len(prompt) >= room:
        raise InputError(
            f"prompt: found {len(prompt)} tokens, expected at most {room - 1}, one fewer than"
            f" model.context_length = {room}."
        )
    options = decoder.options
    if speculation is not None and (options.warm_start or decoder.is_sequential):
        key = "readout"
        if decoder.shares_slots:
            key = "kv_slots"
        if options.warm_start:
            key = "warm_start"
        raise InputError(
            f"{key}: found {getattr(options, key)} together with drafts, expected the default,"
            " because drafts are verified in parallel."
        )
    decoder.reset()

    def new_tokens() -> Iterator[NewToken]:
        remaining = min(max_new_tokens, room - len(prompt))
        logits, counts = decoder.prefill(prompt)
        evaluations = counts.evaluations[:, 0, -1].tolist()  # of the last token, per group
        new = [NewToken(sampling.choose(logits[-1], len(prompt)), tuple(evaluations))]
        while remaining:
            for token in new:
                yield token
                remaining -= 1
                if not remaining or token.id == end_of_text:
                    return
            if speculation is not None:
                new = speculation.next_tokens(decoder, new[-1].id, remaining, sampling)
                continue
            logits, evaluations = decoder.feed(new[-1].id)
            new = [NewToken(sampling.choose(logits, decoder.position), tuple(evaluations))]

    return new_tokens()


# --- command line ---------------------------------------------------------------------------------


def main(arguments: argparse.Namespace) -> None:
    published = arguments.model and PublishedFolder(arguments.model)
    if arguments.max_loops is None:
        arguments.max_loops = published.description.loops if published else MAX_LOOPS
    for name in ("tokens", "max_loops", "draft_loops"):
        found = getattr(arguments, name)
        if found < 1:
            option = name.replace("_", "-")
            raise InputError(f"option --{option}: found {found}, expected at least 1.")
    if arguments.device == "cuda":
        check_cuda("option --device")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    # where the locale is not UTF-8, bytes of the command line are surrogates, which no tokenizer
    # reads
    prompts = [os.fsencode(prompt).decode(errors="replace") for prompt in arguments.prompt]
    run = open_model(arguments, prompts)
    options = DecoderOptions(
        kv_slots=arguments.kv_slots,
        warm_start=arguments.warm_start,
        readout=published.readout if published else "head",
    )
    decoder = Decoder(run.model, parse_criterion(arguments), arguments.max_loops, run.seed, options)
    # a terminal without UTF-8 shows question marks
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="replace")
    for prompt in prompts:
        print_text(run, decoder, prompt, arguments)


def print_text(
    run: TrainedRun, decoder: Decoder, prompt: str, arguments: argparse.Namespace
) -> None:
    """Continue a prompt: the text goes to standard output, speed and loops to standard error."""
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed)
    speculation = None
    if arguments.speculative is not None:
        speculation = Speculation(
            make_criterion("fixed", arguments.draft_loops), arguments.speculative
        )
    ids = run.tokenizer.encode(prompt)
    end = run.tokenizer.end_of_text
    started = time.perf_counter()
    new_tokens = generate(decoder, ids, arguments.tokens, sampling, end, speculation)
    # an incomplete character waits for its last byte
    utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
    tokens: list[NewToken] = []
    times: list[float] = []

    def show(text: str) -> None:
        # generated text must not control a terminal
        print(neutralise(text) if sys.stdout.isatty() else text, end="", flush=True)

    show(prompt)
    for token in new_tokens:
        times.append(time.perf_counter() - started)
        tokens.append(token)
        if token.id != end:
            show(utf8.decode(run.tokenizer.bytes_of(token.id)))
            if arguments.show_loops:
                show(f"[{','.join(map(str, token.evaluations))}]")
    show(utf8.decode(b"", final=True) + "\n")

    reason = f"after {arguments.tokens} tokens, as set by --tokens"
    if tokens[-1].id == end:
        reason = "at the end-of-text token, which the model chose"
    elif len(tokens) < arguments.tokens:
        reason = (
            f"after {len(tokens)} of {arguments.tokens} tokens, because the text fills the"
            f" model's context of {run.model.config.context_length}"
        )
    facts = {"stopped": reason, "prompt": f"{len(ids)} tokens read in {times[0]:.2f} s"}
    if len(tokens) > 1:
        # without the first token, whose time is that of the prompt
        facts["speed"] = f"{(len(tokens) - 1) / (times[-1] - times[0]):.1f} tokens/s"
    labels = run.model.config.group_labels
    if labels:
        evaluations = torch.tensor([token.evaluations for token in tokens])  # (N, G)
        means = evaluations.double().mean(0).tolist()
        per_group = [f"{mean:.2f} in {label}" for label, mean in zip(labels, means, strict=True)]
        facts["evaluations per token"] = ", ".join(per_group)
    if speculation is not None:
        share = speculation.accepted / max(1, speculation.drafted)
        facts["drafts"] = f"{speculation.accepted} of {speculation.drafted} accepted ({share:.0%})"
    for name, value in facts.items():
        print(f"{name}: {value}", file=sys.stderr)


def open_model(arguments: argparse.Namespace, prompts: Sequence[str]) -> TrainedRun:
    """The run of --run, or the published model of --model with room for the longest text."""
    dtype = getattr(torch, arguments.dtype)
    if arguments.model is None:
        return open_run(arguments.results / arguments.run, device=arguments.device, dtype=dtype)
    tokenizer = load_tokenizer("published", arguments.model / "tokenizer.json")
    room = max(len(tokenizer.encode(prompt)) for prompt in prompts) + arguments.tokens
    return open_published_run(arguments.model, tokenizer, room, arguments.device, dtype)


def parse_criterion(arguments: argparse.Namespace) -> ExitCriterion:
    """The exit criterion of the options; `fixed` defaults to all loops."""
    name, tau, criteria = arguments.criterion, arguments.tau, CRITERIA
    if arguments.criterion_file is not None:
        criteria = {name: load_criterion(arguments.criterion_file, name)}
    if tau is None and name == "fixed":
        tau = arguments.max_loops
    if name in criteria:  # an unknown one is refused below
        if tau is not None and counts_loops(name) and float(tau).is_integer():
            tau = int(tau)
        check_threshold(name, tau, None, "option --tau", "--max-loops")
    return make_criterion(name, tau, criteria)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    model = options.add_mutually_exclusive_group(required=True)
    model.add_argument("--run", help="name of a trained run")
    model.add_argument(
        "--model", type=Path, metavar="FOLDER", help="folder of a published model (docs/models.md)"
    )
    add(
        "--results",
        type=Path,
        default=Path("results"),
        help="folder of the runs (default: results)",
    )
    add("--prompt", required=True, nargs="+", help="texts to continue, one after another")
    add(
        "--tokens",
        type=int,
        default=100,
        help="maximum number of tokens to generate (default: 100)",
    )
    add("--criterion", default="fixed", help="exit criterion (default: fixed, all loops)")
    add(
        "--criterion-file",
        metavar="FILE",
        help="Python file with your criterion; --criterion then names its class",
    )
    add("--tau", type=float, help="threshold of the criterion")
    add(
        "--max-loops",
        type=int,
        help=f"maximum loops per group (default: {MAX_LOOPS}; as published with --model)",
    )
    add(
        "--temperature",
        type=float,
        default=TEMPERATURE,
        help=f"(default: {TEMPERATURE}); 0 is greedy",
    )
    add("--top-k", type=int, metavar="K", help="sample among the K most likely tokens")
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="sample among the most likely tokens with total probability P",
    )
    add("--seed", type=int, default=0, help="sampling seed; the same seed gives the same text")
    add("--kv-slots", type=int, metavar="M", help="number M of cache slots that loop steps share")
    add(
        "--warm-start",
        action="store_true",
        help="start each token from the state of the previous one",
    )
    add("--speculative", type=int, metavar="N", help="draft N tokens, then verify them in one pass")
    add("--draft-loops", type=int, default=4, help="loops of a drafted token (default: 4)")
    add("--show-loops", action="store_true", help="print the loops of each group after each token")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--threads", type=int, help="threads of PyTorch (default: chosen by PyTorch)")
    return options
