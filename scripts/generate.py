"""Generate text with the last checkpoint of a run, every token looping as long as an exit rule says.

    python scripts/generate.py --run demo --prompt "The loop" --criterion acceleration --tau 1e-3

The text goes to standard output as it is made; speed and loops go to standard error. Decoding is greedy unless
a temperature is given. The configuration is not read: what the model is stands in its checkpoint.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from twoscale import command
from twoscale.exits import loop_heatmap
from twoscale import config
from twoscale.errors import InputError
from twoscale.exits.criteria import CRITERIA, ExitCriterion, check_name, load_criterion, make_criterion
from twoscale.files import replacing
from twoscale.model.trained_run import TrainedRun, open_run
from twoscale.exits.generation import NewToken, Sampling, Speculation, generate
from twoscale.exits.inference import Decoder, state_decoder
from twoscale.model.transformer import LoopedTransformer


def main(arguments: argparse.Namespace) -> None:
    for option in ("tokens", "budget", "draft_loops"):
        if (found := getattr(arguments, option)) < 1:
            raise InputError(f"option --{option.replace('_', '-')}: found {found}, expected at least 1.")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    run = open_run(arguments.results, arguments.run, arguments.device, getattr(torch, arguments.dtype))
    prompt = run.tokenizer.encode(arguments.prompt)
    speculation = drafts(run.model, arguments)
    decoder = Decoder(
        run.model,
        chosen_rule(run.model, arguments, "tau", arguments.tau),
        arguments.max_loops,
        run.seed,
        kv_slots=arguments.kv_slots,
        warm_start=arguments.warm_start,
        replay=None if arguments.cuda_graphs else False,
    )
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, arguments.seed)
    started = time.perf_counter()
    new_tokens = generate(decoder, prompt, arguments.tokens, sampling, run.tokenizer.end_of_text, speculation)
    in_colour = arguments.show_loops == "always" or (arguments.show_loops == "auto" and sys.stdout.isatty())
    shown = Shown(run, arguments.max_loops, in_colour)
    shown.text(arguments.prompt)
    made, times = [], []
    for token in new_tokens:
        times.append(time.perf_counter() - started)
        made.append(token)
        shown.token(token)
    shown.end()

    facts = {"stopped": reason(made, run, arguments.tokens)}
    facts |= summary(len(prompt), made, times, run.model.config, speculation)
    for name, value in facts.items():
        print(f"{name}: {value}", file=sys.stderr)
    if arguments.html is not None:
        write_page(arguments, run, facts, shown.pieces)


def chosen_rule(model: LoopedTransformer, arguments: argparse.Namespace, option: str, tau: float | None) -> ExitCriterion:
    """The exit rule asked for at the threshold of an option; `fixed` runs the whole budget unless told otherwise."""
    name = arguments.criterion
    criteria = CRITERIA if arguments.criterion_file is None else {name: load_criterion(arguments.criterion_file, name)}
    check_name(name, criteria)
    if tau is None and name == "fixed":
        tau = arguments.max_loops
    if tau is None:
        raise InputError(f"option --{option}: found nothing, expected the threshold of the rule {name}.")
    if not math.isfinite(tau) or tau <= 0:
        raise InputError(f"option --{option}: found {tau}, expected a number > 0.")
    if config.THRESHOLD_TYPES.get(name) is int:
        if tau != int(tau):
            raise InputError(f"option --{option}: found {tau}, expected a whole number for the rule {name}.")
        tau = int(tau)
    return make_criterion(name, tau, state_decoder(model, arguments.readout), criteria)


def drafts(model: LoopedTransformer, arguments: argparse.Namespace) -> Speculation | None:
    """How tokens are drafted, if they are: under the rule at another threshold, or with a fixed number of loops."""
    if arguments.speculative is None:
        if arguments.draft_tau is not None:
            raise InputError("option --draft-tau: found without --speculative, expected how many tokens to draft.")
        return None
    if arguments.draft_tau is None:
        criterion = make_criterion("fixed", arguments.draft_loops, model.readout)
    else:
        criterion = chosen_rule(model, arguments, "draft-tau", arguments.draft_tau)
    return Speculation(criterion, arguments.speculative)


class Shown:
    """The text on standard output, in colours or plain, and its pieces for the page."""

    def __init__(self, run: TrainedRun, budget: int, in_colour: bool) -> None:
        self.run, self.budget, self.in_colour = run, budget, in_colour
        self.pieces: list[loop_heatmap.Piece] = []
        self._characters = loop_heatmap.Pieces()
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows question marks

    def text(self, text: str) -> None:
        print(loop_heatmap.harmless(text) if sys.stdout.isatty() else text, end="", flush=True)

    def token(self, token: NewToken) -> None:
        if token.id != self.run.tokenizer.end_of_text:
            self._piece(self._characters.next(self.run.tokenizer.bytes_of(token.id)), token.evaluations)

    def end(self) -> None:
        if rest := self._characters.rest():  # the last character was cut off
            self._piece(rest, self.pieces[-1].loops)
        print(flush=True)

    def _piece(self, text: str, loops: tuple[int, ...]) -> None:
        self.pieces.append(loop_heatmap.Piece(text, loops))
        if self.in_colour:
            print(loop_heatmap.terminal(self.pieces[-1], self.budget), end="", flush=True)
        else:
            self.text(text)


def reason(made: list[NewToken], run: TrainedRun, wanted: int) -> str:
    """Why the text ends where it does."""
    if made[-1].id == run.tokenizer.end_of_text:
        return "at the end of the text, which the model chose"
    if len(made) < wanted:
        block = run.model.config.context_length
        return f"after {len(made)} of {wanted} tokens, because the text fills the model's block of {block}"
    return f"after {wanted} tokens, as asked for"


def summary(
    prompt: int, made: list[NewToken], times: list[float], model: config.ModelConfig, speculation: Speculation | None
) -> dict[str, str]:
    """Speed and loops; the first token's time is that of reading the prompt."""
    facts = {"prompt": f"{prompt} tokens read in {times[0]:.2f} s"}
    if len(made) > 1:
        facts["speed"] = f"{(len(made) - 1) / (times[-1] - times[0]):.1f} tokens/s"
    if model.groups:
        facts["mean loops"] = loops_of_groups(made, model.group_labels)
    if speculation is not None:
        facts["drafts"] = f"{speculation.accepted} of {speculation.drafted} accepted ({speculation.acceptance:.0%})"
    return facts


def loops_of_groups(made: list[NewToken], labels: Iterable[str]) -> str:
    groups = zip(*(token.evaluations for token in made), strict=True)
    return ", ".join(f"{sum(taken) / len(made):.2f} in {label}" for label, taken in zip(labels, groups, strict=True))


def write_page(
    arguments: argparse.Namespace, run: TrainedRun, facts: dict[str, str], pieces: list[loop_heatmap.Piece]
) -> None:
    tau = "" if arguments.tau is None else f" {arguments.tau:g}"
    about = {"checkpoint": f"{arguments.run}, step {run.step}", "exit rule": f"{arguments.criterion}{tau}"}
    labels = run.model.config.group_labels
    page = loop_heatmap.page("Loops per token", about | facts, arguments.prompt, pieces, labels)
    with replacing(arguments.html) as temporary:
        temporary.write_text(page, encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--run", required=True, help="name of a trained run")
    made.add_argument("--results", type=Path, default=Path("results"), help="folder of the runs (default: results)")
    made.add_argument("--prompt", required=True, help="text to go on from")
    made.add_argument("--tokens", type=int, default=100, help="tokens to generate at most (default: 100)")
    exit_rule = made.add_argument_group("exit rule")
    exit_rule.add_argument("--criterion", default="fixed", help="exit rule (default: fixed, all loops of the budget)")
    exit_rule.add_argument(
        "--criterion-file", metavar="FILE", help="Python file with a rule of your own; --criterion then names its class"
    )
    exit_rule.add_argument("--tau", type=float, help="threshold of the rule")
    exit_rule.add_argument("--max-loops", type=int, default=30, help="loops of a group at most (default: 30)")
    exit_rule.add_argument(
        "--readout",
        choices=["head", "remaining_layers"],
        default="head",
        help="what a rule that looks at predictions reads them through (default: head)",
    )
    choice = made.add_argument_group("choice of tokens")
    choice.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    choice.add_argument("--top-k", type=int, metavar="K", help="sample among the K likeliest tokens")
    choice.add_argument("--top-p", type=float, metavar="P", help="sample among the likeliest tokens that sum to P")
    choice.add_argument("--seed", type=int, default=0, help="of the sampling; the same seed gives the same text")
    decoding = made.add_argument_group("decoding")
    decoding.add_argument("--kv-slots", type=int, metavar="M", help="loop steps share M slots of the cache")
    decoding.add_argument("--warm-start", action="store_true", help="start a token from the state of the one before")
    decoding.add_argument("--speculative", type=int, metavar="N", help="draft N tokens, then verify them in one pass")
    decoding.add_argument("--draft-loops", type=int, default=4, help="loops of a drafted token (default: 4)")
    decoding.add_argument(
        "--draft-tau", type=float, metavar="TAU", help="draft under the rule at this threshold instead"
    )
    decoding.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    decoding.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    decoding.add_argument("--threads", type=int, help="threads of PyTorch (default: its own choice)")
    decoding.add_argument(
        "--cuda-graphs", action=argparse.BooleanOptionalAction, default=True, help="replay captured loop steps on CUDA"
    )
    display = made.add_argument_group("display")
    display.add_argument(
        "--show-loops", nargs="?", const="auto", choices=["auto", "always"],
        help="colour each token by its loops: on a terminal, or always",
    )  # fmt: skip
    display.add_argument("--html", type=Path, metavar="FILE", help="write the coloured text as a page, too")
    return made


if __name__ == "__main__":
    command.run(main, parser())
