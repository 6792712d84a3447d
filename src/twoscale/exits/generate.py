"""Generate text from the last checkpoint of a run, or from a published model, under an exit criterion.

    python scripts/generate.py --run demo --prompt "The loop" --criterion acceleration --tau 1e-3

With --batch in place of --prompt all lines of a file are continued at once, and each gives a line of JSON.

The text goes to standard output as it is generated, speed and loops to standard error. Tokens are sampled at
temperature 0.8 with a fixed seed, because the greedy text of a small model repeats itself; --temperature 0 is greedy.
The config is not read: the checkpoint carries the model's config.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import cast

import torch

from twoscale.base import InputError, neutralise, replacing
from twoscale.config import ModelConfig
from twoscale.config.thresholds import THRESHOLD_TYPES
from twoscale.data.tokenizer import load_tokenizer
from twoscale.exits import probe
from twoscale.exits.criteria import CRITERIA, ExitCriterion, make_criterion
from twoscale.exits.criterion_file import load_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.generate_batch import check_options as check_batch_options
from twoscale.exits.generate_batch import generate_batch, read_prompts
from twoscale.exits.generation import NewToken, Speculation, generate
from twoscale.exits.loop_heatmap import (
    TokenSpan,
    Utf8Stream,
    loop_range,
    page,
    terminal,
    terminal_ends,
    terminal_scale,
)
from twoscale.exits.readout import READOUTS
from twoscale.exits.sampling import Sampling
from twoscale.jobs.machine import check_cuda
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.trained_run import TrainedRun, open_published_run, open_run

DTYPES = ("float32", "float64")
MAX_LOOPS = 30
TEMPERATURE = 0.8


def main(arguments: argparse.Namespace) -> None:
    check_options(arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    prompts = [arguments.prompt] if arguments.batch is None else read_prompts(arguments.batch)
    run = open_model(arguments, prompts)
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed)
    if arguments.batch is not None:
        criterion = parse_criterion(arguments, run, "tau", arguments.tau)
        generate_batch(run, prompts, criterion, sampling, arguments)
    else:
        generate_text(run, sampling, arguments)


def generate_text(run: TrainedRun, sampling: Sampling, arguments: argparse.Namespace) -> None:
    """Continue the one text of --prompt."""
    prompt = run.tokenizer.encode(arguments.prompt)
    speculation = make_speculation(arguments, run)
    decoder = make_decoder(run, arguments)
    in_colour = arguments.show_loops == "always" or (arguments.show_loops == "auto" and sys.stdout.isatty())
    printer = TokenPrinter(run, in_colour)
    started = time.perf_counter()
    new_tokens = generate(decoder, prompt, arguments.tokens, sampling, run.tokenizer.end_of_text, speculation)
    printer.text(arguments.prompt)
    tokens, times = [], []
    try:
        for token in new_tokens:
            times.append(time.perf_counter() - started)
            tokens.append(token)
            printer.token(token)
    finally:
        printer.end()

    facts = {"stopped": stop_reason(tokens, run, arguments.tokens)}
    facts |= summary(len(prompt), tokens, times, run.model.config)
    if run.model.config.groups:
        facts["loops per token"] = loop_range(printer.spans)
    if speculation is not None:
        accepted = f"{speculation.accepted} of {speculation.drafted} accepted"
        facts["drafts"] = f"{accepted} ({speculation.acceptance:.0%})"
    for name, value in facts.items():
        print(f"{name}: {value}", file=sys.stderr)
    if in_colour:
        print(f"colours: {terminal_scale(printer.ends)} loops, and more", file=sys.stderr)
    if arguments.html is not None:
        write_page(arguments, run, facts, printer.spans)


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse numbers out of range and a missing device; complete options that depend on others."""
    published = arguments.model and PublishedFolder(arguments.model)
    if arguments.max_loops is None:
        arguments.max_loops = published.defaults.loops if published else MAX_LOOPS
    if arguments.readout is None:
        arguments.readout = published.readout if published else "head"
    for option in ("tokens", "max_loops", "draft_loops"):
        if (found := getattr(arguments, option)) < 1:
            raise InputError(f"option --{option.replace('_', '-')}: found {found}, expected at least 1.")
    if arguments.html is not None and not arguments.html.parent.is_dir():
        raise InputError(f"option --html: found no folder {arguments.html.parent}, expected one for the page.")
    if arguments.device == "cuda":
        check_cuda("option --device")
    if arguments.batch is not None:
        check_batch_options(arguments)
        return
    # where the locale is not UTF-8, bytes of the command line are surrogates, which no tokenizer reads
    arguments.prompt = os.fsencode(arguments.prompt).decode(errors="replace")


def open_model(arguments: argparse.Namespace, prompts: Sequence[str]) -> TrainedRun:
    """The run of --run, or the published model of --model with room for the longest text."""
    dtype = getattr(torch, arguments.dtype)
    if arguments.model is None:
        return open_run(arguments.results / arguments.run, device=arguments.device, dtype=dtype)
    tokenizer = load_tokenizer("published", arguments.model / "tokenizer.json")
    room = max(len(tokenizer.encode(prompt)) for prompt in prompts) + arguments.tokens
    return open_published_run(arguments.model, tokenizer, room, arguments.device, dtype)


def make_decoder(run: TrainedRun, arguments: argparse.Namespace) -> Decoder:
    options = DecoderOptions(
        kv_slots=arguments.kv_slots,
        warm_start=arguments.warm_start,
        replay=None if arguments.cuda_graphs else False,
        compile=arguments.compile,
        readout=arguments.readout,
    )
    criterion = parse_criterion(arguments, run, "tau", arguments.tau)
    return Decoder(run.model, criterion, arguments.max_loops, run.seed, options)


def parse_criterion(arguments: argparse.Namespace, run: TrainedRun, option: str, tau: float | None) -> ExitCriterion:
    """The exit criterion of the options at the threshold `tau` of `option`; `fixed` defaults to all loops."""
    name = arguments.criterion
    criteria = CRITERIA
    if arguments.criterion_file is not None:
        criteria = {name: load_criterion(arguments.criterion_file, name)}
    elif name == "probe" and arguments.run is not None:
        fitted = probe.open_probe(arguments.results / arguments.run / probe.FILE, run)
        assert fitted is not None
        criteria = {name: probe.criterion_of(fitted)}
    if name in criteria:
        tau = check_tau(name, tau, arguments.max_loops, option)
    return make_criterion(name, tau, criteria)  # type: ignore[arg-type]


def check_tau(criterion: str, tau: float | None, max_loops: int, option: str) -> float:
    if tau is None and criterion == "fixed":
        tau = max_loops
    if tau is None:
        raise InputError(f"option --{option}: found nothing, expected the threshold of the criterion {criterion}.")
    if not math.isfinite(tau) or tau <= 0:
        raise InputError(f"option --{option}: found {tau}, expected a number > 0.")
    if THRESHOLD_TYPES.get(criterion) is int:
        if tau != int(tau):
            raise InputError(f"option --{option}: found {tau}, expected a whole number for the criterion {criterion}.")
        tau = int(tau)
    return tau


def make_speculation(arguments: argparse.Namespace, run: TrainedRun) -> Speculation | None:
    """Drafts under the criterion at another threshold, or with a fixed number of loops; None without drafts."""
    if arguments.speculative is None:
        if arguments.draft_tau is not None:
            raise InputError("option --draft-tau: requires --speculative with the number of tokens to draft.")
        return None
    if arguments.draft_tau is None:
        criterion = make_criterion("fixed", arguments.draft_loops)
    else:
        criterion = parse_criterion(arguments, run, "draft-tau", arguments.draft_tau)
    return Speculation(criterion, arguments.speculative)


class TokenPrinter:
    """Prints the text, coloured or plain, and keeps its spans for the page."""

    def __init__(self, run: TrainedRun, in_colour: bool) -> None:
        self.run, self.in_colour = run, in_colour
        self.spans: list[TokenSpan] = []
        self._text = Utf8Stream()
        cast(TextIOWrapper, sys.stdout).reconfigure(errors="replace")  # a terminal without UTF-8 shows question marks

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the scale of the colours."""
        return terminal_ends(self.spans[0].mean if self.spans else 1.0)

    def text(self, text: str) -> None:
        print(neutralise(text) if sys.stdout.isatty() else text, end="", flush=True)

    def token(self, token: NewToken) -> None:
        if token.id != self.run.tokenizer.end_of_text:
            self._span(self._text.decode(self.run.tokenizer.bytes_of(token.id)), token.evaluations)

    def end(self) -> None:
        if rest := self._text.flush():  # the last character is incomplete
            self._span(rest, self.spans[-1].loops)
        print(flush=True)

    def _span(self, text: str, loops: tuple[int, ...]) -> None:
        self.spans.append(TokenSpan(text, loops))
        if self.in_colour:
            print(terminal(self.spans[-1], self.ends), end="", flush=True)
        else:
            self.text(text)


def stop_reason(tokens: Sequence[NewToken], run: TrainedRun, max_new_tokens: int) -> str:
    """Why the text ends."""
    if tokens[-1].id == run.tokenizer.end_of_text:
        return "at the end-of-text token, which the model chose"
    if len(tokens) < max_new_tokens:
        room = run.model.config.context_length
        return f"after {len(tokens)} of {max_new_tokens} tokens, because the text fills the model's context of {room}"
    return f"after {max_new_tokens} tokens, as set by --tokens"


def summary(prompt: int, tokens: Sequence[NewToken], times: Sequence[float], model: ModelConfig) -> dict[str, str]:
    """Speed and loops; the time of the first token is the time to read the prompt."""
    facts = {"prompt": f"{prompt} tokens read in {times[0]:.2f} s"}
    if len(tokens) > 1:
        facts["speed"] = f"{(len(tokens) - 1) / (times[-1] - times[0]):.1f} tokens/s"
    if model.groups:
        evaluations = zip(*(token.evaluations for token in tokens), strict=True)  # per group
        means = zip(model.group_labels, (sum(group) / len(tokens) for group in evaluations), strict=True)
        facts["evaluations per token"] = ", ".join(f"{mean:.2f} in {label}" for label, mean in means)
    return facts


def write_page(
    arguments: argparse.Namespace, run: TrainedRun, facts: dict[str, str], spans: Sequence[TokenSpan]
) -> None:
    tau = "" if arguments.tau is None else f" {arguments.tau:g}"
    facts = {
        "checkpoint": f"{arguments.run or arguments.model}, iteration {run.iteration}",
        "exit criterion": f"{arguments.criterion}{tau}",
        **facts,
    }
    html = page("Loops per token", facts, arguments.prompt, spans, run.model.config.group_labels)
    with replacing(arguments.html) as temporary:
        temporary.write_text(html, encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = options.add_mutually_exclusive_group(required=True)
    model.add_argument("--run", help="name of a trained run")
    model.add_argument("--model", type=Path, metavar="FOLDER", help="folder of a published model (docs/models.md)")
    options.add_argument("--results", type=Path, default=Path("results"), help="folder of the runs (default: results)")
    text = options.add_mutually_exclusive_group(required=True)
    text.add_argument("--prompt", help="text to continue")
    text.add_argument("--batch", type=Path, metavar="FILE", help="file with a text to continue on each line")
    options.add_argument("--tokens", type=int, default=100, help="maximum number of tokens to generate (default: 100)")
    for add in (_add_criterion, _add_choice, _add_decoding, _add_display):
        add(options)
    return options


def _add_criterion(options: argparse.ArgumentParser) -> None:
    criterion = options.add_argument_group("exit criterion")
    criterion.add_argument("--criterion", default="fixed", help="exit criterion (default: fixed, all loops)")
    criterion.add_argument(
        "--criterion-file", metavar="FILE", help="Python file with your criterion; --criterion then names its class"
    )
    criterion.add_argument("--tau", type=float, help="threshold of the criterion")
    criterion.add_argument(
        "--max-loops",
        type=int,
        help=f"maximum loops per group (default: {MAX_LOOPS} for every run; as published with --model)",
    )
    criterion.add_argument(
        "--readout",
        choices=READOUTS,
        help="how criteria predict from states (default: head; as published with --model)",
    )


def _add_choice(options: argparse.ArgumentParser) -> None:
    choice = options.add_argument_group("choice of tokens")
    choice.add_argument(
        "--temperature",
        type=float,
        default=TEMPERATURE,
        help=f"sampling temperature (default: {TEMPERATURE}); 0 is greedy",
    )
    choice.add_argument("--top-k", type=int, metavar="K", help="sample among the K most likely tokens")
    choice.add_argument(
        "--top-p", type=float, metavar="P", help="sample among the most likely tokens with total probability P"
    )
    choice.add_argument("--seed", type=int, default=0, help="sampling seed; the same seed gives the same text")


def _add_decoding(options: argparse.ArgumentParser) -> None:
    decoding = options.add_argument_group("decoding")
    decoding.add_argument("--kv-slots", type=int, metavar="M", help="number M of cache slots that loop steps share")
    decoding.add_argument(
        "--sequences",
        type=int,
        default=16,
        metavar="S",
        help="maximum number of texts at once with --batch (default: 16)",
    )
    decoding.add_argument(
        "--warm-start", action="store_true", help="start each token from the state of the previous one"
    )
    decoding.add_argument("--speculative", type=int, metavar="N", help="draft N tokens, then verify them in one pass")
    decoding.add_argument("--draft-loops", type=int, default=4, help="loops of a drafted token (default: 4)")
    decoding.add_argument(
        "--draft-tau",
        type=float,
        metavar="TAU",
        help="draft with the criterion at this threshold, not with --draft-loops",
    )
    decoding.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    decoding.add_argument("--dtype", choices=DTYPES, default="float32")
    decoding.add_argument("--threads", type=int, help="threads of PyTorch (default: chosen by PyTorch)")
    decoding.add_argument(
        "--cuda-graphs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="replay captured loop steps (CUDA graphs)",
    )
    decoding.add_argument("--compile", action="store_true", help="compile the loop steps that are replayed on CUDA")


def _add_display(options: argparse.ArgumentParser) -> None:
    display = options.add_argument_group("display")
    display.add_argument(
        "--show-loops", nargs="?", const="auto", choices=["auto", "always"],
        help="colour each token by its loops: on a terminal, or always",
    )  # fmt: skip
    display.add_argument("--html", type=Path, metavar="FILE", help="also write the coloured text as an HTML page")
