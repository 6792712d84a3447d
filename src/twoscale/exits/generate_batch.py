"""Continue the prompts in a file at once, one on each line, and print a line of JSON for each (generate.py --batch)."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from twoscale.base import InputError
from twoscale.exits.batched import BatchedDecoder, BatchOptions, Request
from twoscale.exits.criteria import ExitCriterion
from twoscale.exits.generation import NewToken, check_prompt
from twoscale.exits.sampling import Sampling
from twoscale.model.trained_run import TrainedRun

# Options that are about one text, with their values where they are not given.
OF_ONE_TEXT = {
    "speculative": None,
    "draft_tau": None,
    "kv_slots": None,
    "show_loops": None,
    "html": None,
    "compile": False,
}


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse options that are about one text."""
    for option, default in OF_ONE_TEXT.items():
        if getattr(arguments, option) != default:
            raise InputError(f"option --{option.replace('_', '-')}: cannot be combined with --batch.")
    if arguments.sequences < 1:
        raise InputError(f"option --sequences: found {arguments.sequences}, expected at least 1.")


def read_prompts(file: Path) -> list[str]:
    """The prompts of a UTF-8 text file, one a line. Raises InputError for a file without prompts or an empty line."""
    try:
        text = file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"option --batch: {file} is not readable ({error}), expected text in UTF-8.") from error
    if not text.strip():
        raise InputError(f"option --batch: found no prompt in {file}, expected one per line.")
    prompts = text.split("\n")
    for number, prompt in enumerate(prompts, start=1):
        if not prompt:
            raise InputError(f"option --batch: line {number} of {file} is empty, expected a prompt.")
    return prompts


def generate_batch(
    run: TrainedRun, prompts: Sequence[str], criterion: ExitCriterion, sampling: Sampling, arguments: argparse.Namespace
) -> None:
    """Print a line of JSON for each prompt, in their order: prompt, text, tokens and mean evaluations of each group.

    Each text is the one that its prompt has alone under the same options.
    """
    texts = [run.tokenizer.encode(prompt) for prompt in prompts]
    room = run.model.config.context_length
    for number, tokens in enumerate(texts, start=1):
        check_prompt(room, tokens, f"option --batch: line {number} of {arguments.batch}")
    requests = [Request(tokens, arguments.tokens, sampling.choose, run.tokenizer.end_of_text) for tokens in texts]
    decoder = BatchedDecoder(
        run.model,
        criterion,
        arguments.max_loops,
        run.seed,
        min(arguments.sequences, len(prompts)),
        BatchOptions(
            warm_start=arguments.warm_start,
            readout=arguments.readout,
            room=max(map(len, texts)) + arguments.tokens,
        ),
    )
    started = time.perf_counter()
    evaluations: list[tuple[int, ...]] = []
    for prompt, new in zip(prompts, decode_in_order(decoder, requests), strict=True):
        print(json.dumps({"prompt": prompt, **_described(run, new)}), flush=True)
        evaluations += [token.evaluations for token in new]
    seconds = time.perf_counter() - started
    print(f"prompts: {len(prompts)}, up to {arguments.sequences} at once", file=sys.stderr)
    print(f"speed: {len(evaluations) / seconds:.1f} tokens/s, including reading the prompts", file=sys.stderr)
    means = zip(run.model.config.group_labels, np.mean(evaluations, axis=0), strict=True)
    if per_group := ", ".join(f"{mean:.2f} in {label}" for label, mean in means):
        print(f"evaluations per token: {per_group}", file=sys.stderr)


def decode_in_order(decoder: BatchedDecoder, requests: Sequence[Request]) -> Iterator[list[NewToken]]:
    """The tokens of each request, in the order of the requests, each as soon as it and those before have ended."""
    tokens: list[list[NewToken]] = [[] for _ in requests]
    ended, following = set(), 0
    for number, token, is_last in decoder.decode(requests):
        tokens[number].append(token)
        if is_last:
            ended.add(number)
        while following in ended:
            yield tokens[following]
            following += 1


def _described(run: TrainedRun, tokens: Sequence[NewToken]) -> dict[str, object]:
    ids = [token.id for token in tokens if token.id != run.tokenizer.end_of_text]
    text = b"".join(map(run.tokenizer.bytes_of, ids)).decode(errors="replace")
    means = np.mean([token.evaluations for token in tokens], axis=0).round(2).tolist()
    evaluations = dict(zip(run.model.config.group_labels, means, strict=True))
    return {"text": text, "tokens": len(tokens), "evaluations": evaluations}
