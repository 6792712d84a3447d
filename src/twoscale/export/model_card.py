"""The model card of a release, README.md: what the model is, what it was trained on, and the verdicts on the claims."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from twoscale.base import markdown
from twoscale.claims.evidence import Estimate
from twoscale.claims.findings import marked
from twoscale.claims.scale import MEANING
from twoscale.claims.seeds import MEAN
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.config import ConfigSlice, DataConfig, ModelConfig, complete, text_label
from twoscale.export.citation import author_name, is_person
from twoscale.export.released import ORIGIN
from twoscale.jobs.environment import FIRST, Environment
from twoscale.model.flops import parameters
from twoscale.report.render import blocks, interval, number, table

# Licence of the training text of sources that are not the user's.
TEXT_LICENCES = {
    "fineweb": "FineWeb is under the Open Data Commons Attribution License (ODC-By 1.0); its web pages have their own "
    "terms.",
    "python_docs": "The documentation of Python is under the PSF License Agreement.",
}
USERS_TEXT = "The terms of the training text, which comes from local files, are not known to the workflow."

CARD = """\
{front_matter}
# {run}: a looped language model

{structure} It was trained to reproduce *Two-Scale Latent Dynamics for Recurrent-Depth Transformers* (Pappone,
Crisostomi, Rodolà, [arXiv 2509.23314](https://arxiv.org/abs/2509.23314)) with the library and workflow `twoscale`: run
`{run}`, seed {seed}, {parameters} parameters. **It is not the model of the paper.** It is meant for measurements of
looped models; it has not been tuned to follow instructions, and nothing about its text has been made safe.

## Use

PyTorch and transformers are enough; the code is in `modeling_twoscale.py`, so it has to be trusted:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
inputs = tokenizer("Return the", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```

{loops}A text has at most {context_length} tokens, where `generate` ends it.{noise}
{fine_tuning}
## Model

{architecture}

## Training

{training}

{checkpoints}

A checkpoint is loaded with `subfolder="iteration_…"`; without it the model is that of iteration {iteration}. The
held-out loss is in nats per token{held_out_loops}, over {held_out_sequences} sequences.
{claims}
## Licence

The code is under the MIT licence (`LICENSE`), and so are the weights unless their publisher says otherwise.
{text_licence}

## Citation

```bibtex
{citation}
```
"""

LOOPED = """A decoder of {layers} layers whose groups {groups} are *looped*: a token passes each of them several times
before it goes on."""
UNLOOPED = "A decoder of {layers} layers without loops."

LOOPS = """\
The number of loop steps is an argument of the model and of `generate`, {max_loops} unless given:

```python
model.generate(**inputs, max_new_tokens=50, max_loops=4)
model.generate(**inputs, max_new_tokens=50, exit_criterion="acceleration", exit_threshold=0.01)
model(**inputs, exit_criterion="kl", exit_threshold=0.001).evaluations  # loop steps (group, text, token)
```

Exit criteria are those of the paper (`step_norm`, `kl`, `acceleration`) and further ones of the library. The text of
`scripts/generate.py --run {run}` of the workflow is that of its option `--max-loops {max_loops}`.
"""

NOISE = """ The loops draw noise, which is a
function of the seed ({seed}), the group and the position of a token: the same text always gives the same logits, in any
batch. `from_pretrained(…, noise_seed=N)` draws other noise."""

FINE_TUNING = """
## Fine-tuning

With `labels` a call has a loss whose gradient flows through all loop steps. Each batch has {max_loops} of them unless
`max_loops` is given; training drew them at random, {mean_loops:g} on average.{noise}
"""
TRAINING_NOISE = """ The noise is the same in every batch and sequence;
in training it was drawn anew, as `from_pretrained(…, draw_noise=True)` does in train mode."""

CLAIMS_HEADER = f"""
## The claims of the paper on this model

A claim *holds* if the 95 % intervals of all its findings are within their bounds, and *does not hold* if one of them is
outside. Intervals are bootstraps over held-out documents, for latency over timed prompts. The verdicts are about this
run with its size and text, not about the paper's model. {MEANING}
"""


def card(
    config: ConfigSlice,
    iterations: Sequence[int],
    tokens: Mapping[str, Any],
    log: pd.DataFrame,
    environments: Sequence[Environment],
    citation: Mapping[str, Any],
    claims: pd.DataFrame | None = None,
    seeds: pd.DataFrame | None = None,
) -> str:
    """Markdown with the front matter of the hub.

    Args:
        config: The slice with `run`, `seed`, `model`, `data`, `tokenizer`, `train` and `max_loops`.
        iterations: Those of all checkpoints, ascending.
        tokens: Content of the run's tokens.json.
        log: Table "training".
        environments: Environments of all segments, on which the bits of training depend besides config and code.
        citation: Content of CITATION.cff.
        claims: Table "claims"; None for a model without loops.
        seeds: Table "seeds", if the run has one. It is left out if it is about an older model.
    """
    model = config.model
    structure = LOOPED if model.groups else UNLOOPED
    return CARD.format(
        front_matter=_front_matter(config.data),
        run=config.run,
        seed=config.seed,
        structure=structure.format(layers=model.num_layers, groups=" | ".join(model.group_labels)),
        parameters=f"{parameters(model):,}",
        loops=LOOPS.format(max_loops=config.max_loops, run=config.run) if model.groups else "",
        context_length=model.context_length,
        noise=NOISE.format(seed=config.seed) if model.draws_noise else "",
        fine_tuning=_fine_tuning(config) if model.groups else "",
        architecture=_architecture(model),
        training=_training(config, tokens, log, environments),
        checkpoints=_checkpoints(iterations, log),
        iteration=iterations[-1],
        held_out_loops=f" at {config.train.held_out_loops} loop steps of each group" if model.groups else "",
        held_out_sequences=config.train.held_out_sequences,
        claims="" if claims is None else _claims(claims, _of_this_model(seeds, claims, config.seed)),
        text_licence=TEXT_LICENCES.get(config.data.source, USERS_TEXT),
        citation="\n\n".join(_bibtex(citation)),
    )


def _fine_tuning(config: ConfigSlice) -> str:
    noise = TRAINING_NOISE if config.model.draws_noise else ""
    return FINE_TUNING.format(max_loops=config.max_loops, mean_loops=config.model.mean_loops + 1, noise=noise)


def _front_matter(data: DataConfig) -> str:
    values: dict[str, Any] = {
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["looped-transformer", "recurrent-depth", "twoscale"],
    }
    if data.source == "fineweb":
        values["datasets"] = [data.repository]
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---\n"


def _architecture(model: ModelConfig) -> str:
    """The keys of the section `model` of a trained model, with the paper's value where it differs."""
    ours, paper = (complete(section) for section in (model, ModelConfig()))
    rows = [
        (f"`{name}`", f"`{json.dumps(value)}`", "" if value == paper[name] else f"`{json.dumps(paper[name])}`")
        for name, value in ours.items()
        if name not in ORIGIN
    ]
    return table(("key", "value", "in the paper's model, if it differs"), rows)


def _training(
    config: ConfigSlice, tokens: Mapping[str, Any], log: pd.DataFrame, environments: Sequence[Environment]
) -> str:
    parts, train, looped = tokens["parts"], config.train, bool(config.model.groups)
    text = markdown(text_label(config.data))
    revision = f", commit {config.data.revision}" if config.data.source == "fineweb" else ""
    sentences = [
        f"Text: {text}{revision}; {parts['train.bin']['count']:,} tokens of {parts['train.bin']['documents']:,} "
        f"documents for training, {parts['val.bin']['count']:,} of {parts['val.bin']['documents']:,} held out. "
        f"The SHA-256 of the tokens is {tokens['digest']}.",
        f"Tokenizer: {config.tokenizer.name}, {tokens['vocab_size']:,} ids.",
        f"Training: {int(log['iteration'].iloc[-1]):,} iterations of {train.batch_size} sequences of "
        f"{config.model.context_length} tokens, {int(log['tokens_seen'].iloc[-1]):,} tokens in total."
        + (f" The loop steps of each group are drawn at random, {config.model.mean_loops + 1:g} on average." * looped),
    ]
    if environments:
        shown = ({name: value for name, value in one.items() if name != FIRST} for one in environments)
        unique = dict.fromkeys(", ".join(f"{name} {value}" for name, value in one.items()) for one in shown)
        sentences.append(f"Environment: {markdown('; then '.join(unique))}.")
    return "\n\n".join(sentences)


def _checkpoints(iterations: Sequence[int], log: pd.DataFrame) -> str:
    losses = log.set_index("iteration")["held_out_loss"]
    seen = log.set_index("iteration")["tokens_seen"]
    rows = [(f"`iteration_{i:06d}`", f"{seen.get(i, 0):,}", number(losses.get(i, float("nan")))) for i in iterations]
    return table(("sub-folder", "tokens seen", "held-out loss"), rows)


def _claims(claims: pd.DataFrame, seeds: pd.DataFrame | None) -> str:
    verdicts = _verdicts(claims)
    over_seeds = {} if seeds is None else _verdicts(seeds[seeds["seed"] == MEAN])
    header: tuple[str, ...] = ("claim", "in short", "verdict")
    if seeds is not None and over_seeds:
        names = [seed for seed in seeds["seed"].unique() if seed != MEAN]
        header = (*header, f"over the seeds {', '.join(names)}")
    rows = []
    for claim in CLAIMS:
        verdict = verdicts.get(claim.number)
        if verdict is not None:
            of_seeds = [over_seeds.get(claim.number, "")] if over_seeds else []
            rows.append((str(claim.number), claim.title, f"**{verdict}**", *of_seeds))
    judged = claims[(claims["scope"] != ALL) & (claims["bounds"].fillna("") != "")]
    columns = ("claim", "scope", "quantity", "value", "95 % interval", "bounds", "verdict")
    return blocks(
        *(CLAIMS_HEADER, table(header, rows)),
        f"<details><summary>The {len(judged)} findings with their intervals</summary>",
        *(table(columns, _findings(judged)), "</details>"),
    )


def _of_this_model(seeds: pd.DataFrame | None, claims: pd.DataFrame, seed: int) -> pd.DataFrame | None:
    """The table "seeds" if its findings on this run agree with the table "claims"; otherwise None."""
    if seeds is None:
        return None
    columns = ["claim", "scope", "quantity", "value"]
    ours, theirs = (
        frame[columns].sort_values(columns, ignore_index=True) for frame in (claims, seeds[seeds["seed"] == str(seed)])
    )
    return seeds if ours.equals(theirs) else None


def _verdicts(rows: pd.DataFrame) -> dict[int, str]:
    """Verdict of each claim with the mark of the scale, by its number."""
    whole = rows[rows["scope"] == ALL]
    return dict(zip(whole["claim"], map(marked, whole["verdict"], whole["scale"]), strict=True))


def _findings(judged: pd.DataFrame) -> Iterable[tuple[str, ...]]:
    for row in judged.itertuples():
        estimate = Estimate(row.value, row.low, row.high)
        values = (number(estimate.value), interval(estimate), row.bounds, row.verdict)
        yield (str(row.claim), row.scope, row.quantity, *values)


def _bibtex(citation: Mapping[str, Any]) -> Iterable[str]:
    """An entry for the project and one for each work that it cites."""
    for entry in (citation, *citation.get("references", ())):
        kind = "software" if entry.get("type") == "software" else "article"
        year = entry.get("year", str(entry.get("date-released", ""))[:4])
        fields = {
            "title": entry["title"],
            "author": " and ".join(_author(author) for author in entry["authors"]),
            "year": year,
            "url": entry.get("url"),
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        word = next(w for w in entry["authors"][0].get("family-names", "twoscale").split())
        yield "\n".join([f"@{kind}{{{word.lower()}{year},", *lines, "}"])


def _author(author: Mapping[str, str]) -> str:
    """An author in BibTeX, where braces keep a name that is not a person's in one piece."""
    name = author_name(author)
    return name if is_person(author) else f"{{{name}}}"
