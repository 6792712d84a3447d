"""The folder of an exported model, in the layout of the Hugging Face hub.

    config.json, model.safetensors, generation_config.json   the model of the last checkpoint
    modeling_twoscale.py, model_transformer.py, …        its code: modules of this library
    tokenizer.json, tokenizer_config.json                the run's tokenizer
    README.md, LICENSE                                   the model card, and the licence of the code
    iteration_000500/, …                                 every checkpoint, with code and tokenizer

`transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` loads it; a
checkpoint is `subfolder="iteration_000500"`. Equal files are hard links to one.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from twoscale.base import link, markdown, replacing
from twoscale.claims.evidence import Evidence, InconclusiveError, marked
from twoscale.claims.exits import EQUAL_QUALITY, criterion_name, equal_quality_points
from twoscale.claims.scale import MEANING
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.config import ConfigSlice, ModelConfig, complete, plain, text_label
from twoscale.data.tokenizer import CHARACTER_TO_BYTE, END_OF_TEXT, Tokenizer
from twoscale.export import check_exported, code_files
from twoscale.jobs.machine import FIRST, Environment
from twoscale.model.checkpoints import CHECKPOINT, Header, load_weights
from twoscale.model.flops import parameters
from twoscale.report.render import number, render

WEIGHTS, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"
MODULE = "model"  # attribute of the class in transformers that is the library's model
# Keys of the section `model` that say where a model comes from; an exported model comes from its
# folder.
ORIGIN = ("architecture", "source", "repository", "revision", "folder")
PADDING = "<|padding|>"
BYTE_TO_CHARACTER = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}


def write_export(
    folder: Path,
    checkpoints: Sequence[Path],
    tokenizer: Tokenizer,
    tokenizer_file: Path | None,
    config: ConfigSlice,
    texts: dict[str, str],
) -> None:
    """Write the export of a run, of all its checkpoints, the last one last, and its tokenizer,
    which may have a file.

    `config` is the slice with `run`, `seed`, `model` and `max_loops`; `texts` are further files,
    name -> content. Raises InputError for a model that cannot be exported, and for checkpoints of
    another run or damaged ones.
    """
    check_exported(config.run, config.model)
    common = code_files() | {
        "tokenizer.json": tokenizer_json(tokenizer, tokenizer_file),
        # Padding comes before a text, as decoding needs it. Its token is none of the vocabulary:
        # transformers gives it the next id, and the model reads it as the end of text. A special
        # token that is spelled out in a text is encoded as ordinary text, as here.
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                **dict.fromkeys(("bos_token", "eos_token"), END_OF_TEXT),
                "pad_token": PADDING,
                "model_max_length": config.model.context_length,
                "padding_side": "left",
                "split_special_tokens": True,
                "clean_up_tokenization_spaces": False,
            }
        ),
    }
    for name, text in (common | texts).items():
        _write(folder / name, text)
    for checkpoint in checkpoints:
        _write_checkpoint(folder / checkpoint.stem, checkpoint, tokenizer, config)
        for name in common:
            link(folder / name, folder / checkpoint.stem / name)
    for name in (WEIGHTS, CONFIG, GENERATION):
        link(folder / checkpoints[-1].stem / name, folder / name)


def _write_checkpoint(
    folder: Path, checkpoint: Path, tokenizer: Tokenizer, config: ConfigSlice
) -> None:
    identity = {"model": plain(config.model), "seed": config.seed}
    tensors, header = load_weights(checkpoint, identity, config.model, "cpu")
    with replacing(folder / WEIGHTS) as temporary:
        named = {f"{MODULE}.{name}": tensor for name, tensor in tensors.items()}
        save_file(named, temporary, metadata={"format": "pt"})
    _write(folder / CONFIG, _json(model_config(config, header, tokenizer)))
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.end_of_text)
    _write(folder / GENERATION, _json(ends | {"pad_token_id": tokenizer.vocab_size}))


def model_config(config: ConfigSlice, header: Header, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json of a checkpoint with this header."""
    return {
        "model_type": "twoscale",
        "architectures": ["TwoscaleForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_twoscale.TwoscaleConfig",
            "AutoModelForCausalLM": "modeling_twoscale.TwoscaleForCausalLM",
        },
        "dtype": "float32",
        "max_loops": config.max_loops,
        "exit_criterion": None,
        "exit_threshold": None,
        "noise_seed": config.seed,
        "run": config.run,
        "iteration": header.iteration,
        "tokens_seen": header.tokens_seen,
        "eos_token_id": tokenizer.end_of_text,
        "padding_id": tokenizer.vocab_size,
        "model": _section(config.model),
    }


def _section(model: ModelConfig) -> dict[str, Any]:
    return {key: value for key, value in complete(model).items() if key not in ORIGIN}


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


# --- tokenizer.json -------------------------------------------------------------------------------


def tokenizer_json(tokenizer: Tokenizer, path: Path | None) -> str:
    """The file `path` of a tokenizer that was trained here; of others from the ranks of their
    merges, which are ids.
    """
    if tokenizer.name == "bpe":
        assert path is not None
        return path.read_text(encoding="utf-8")

    def characters(token: bytes) -> str:
        return "".join(BYTE_TO_CHARACTER[byte] for byte in token)

    ranks = tokenizer.encoding._mergeable_ranks
    vocab = {characters(token): rank for token, rank in ranks.items()}
    engine = Engine(
        models.BPE(vocab=vocab, merges=[(characters(a), characters(b)) for a, b in merges(ranks)])
    )
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return engine.to_str(pretty=True)


def merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The two tokens that each longer token merges, in the order of the ranks."""
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        # the merges before `rank` join the bytes of the token into two parts
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 1:
            pairs = [
                (ranks.get(a + b, rank), i) for i, (a, b) in enumerate(itertools.pairwise(parts))
            ]
            lowest, i = min(pairs)
            if lowest >= rank:
                left, right = parts
                yield left, right
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]


# --- README.md ------------------------------------------------------------------------------------


def card(
    config: ConfigSlice,
    checkpoints: Sequence[Path],
    tokens: Mapping[str, Any],
    log: pd.DataFrame,
    environments: Sequence[Environment],
    citation: Mapping[str, Any],
    claims: "pd.DataFrame | None" = None,
    evidence: Evidence | None = None,
) -> str:
    """The model card: what the model is, what it was trained on, its exits, and the verdicts on the
    claims.

    `tokens` and `citation` are the contents of tokens.json and CITATION.cff, `log` and `claims` the
    tables "training" and "claims"; a model without loops has neither claims nor `evidence` for
    them. The bits of training depend on the `environments` of all segments, besides config (with
    `run`, `seed`, `model`, `data`, `tokenizer`, `train` and `max_loops`) and code.
    """
    at = log.set_index("iteration")
    numbers = (int(CHECKPOINT.fullmatch(path.name)[1]) for path in checkpoints)  # type: ignore[index]
    rows = [
        (i, at["tokens_seen"].get(i, 0), at["held_out_loss"].get(i, float("nan"))) for i in numbers
    ]
    front: dict[str, Any] = {
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["looped-transformer", "recurrent-depth", "twoscale"],
    }
    if config.data.source == "fineweb":
        front["datasets"] = [config.data.repository]
    if not math.isnan(loss := rows[-1][-1]):
        front["model-index"] = model_index(config, loss)
    ours, paper = _section(config.model), _section(ModelConfig())
    whole = (
        {} if claims is None else claims[claims["scope"] == ALL].set_index("claim").to_dict("index")
    )
    shown = [
        ", ".join(f"{name} {one[name]}" for name in one if name != FIRST) for one in environments
    ]
    return render(
        "export/card.md.j2",
        front=yaml.safe_dump(front, sort_keys=False),
        config=config,
        model=config.model,
        parameters=f"{parameters(config.model):,}",
        keys=[
            (
                f"`{name}`",
                f"`{json.dumps(value)}`",
                "" if value == paper[name] else f"`{json.dumps(paper[name])}`",
            )
            for name, value in ours.items()
        ],
        text=markdown(text_label(config.data)),
        parts=tokens["parts"],
        tokens=tokens,
        trained=log.iloc[-1],
        environment=markdown("; then ".join(dict.fromkeys(shown))),
        iterations=[(f"`iteration_{i:06d}`", f"{seen:,}", number(loss)) for i, seen, loss in rows],
        equal_quality=EQUAL_QUALITY,
        exits=[] if evidence is None else exit_rows(evidence),
        claims=[
            (claim.number, claim.title, f"**{marked(found['verdict'], found['scale'])}**")
            for claim in CLAIMS
            if (found := whole.get(claim.number))
        ],
        meaning=MEANING,
        works=[citation, *citation["references"]],
    )


def model_index(config: ConfigSlice, loss: float) -> list[dict[str, Any]]:
    """The metadata `model-index` of the hub: the held-out loss of the last checkpoint, in nats per
    token.
    """
    is_of_hub = config.data.source == "fineweb"
    result = {
        "task": {"type": "text-generation"},
        "dataset": {
            "type": config.data.repository if is_of_hub else config.data.source,
            "name": f"{text_label(config.data)}, held out",
        },
        "metrics": [
            {
                "type": "loss",
                "name": "held-out loss in nats per token",
                "value": round(float(loss), 4),
            }
        ],
    }
    return [{"name": config.run, "results": [result]}]


def exit_rows(evidence: Evidence) -> list[tuple[str, ...]]:
    """Criterion, threshold, evaluations and milliseconds at equal loss; empty where too little was
    measured.
    """
    try:
        full, *points = equal_quality_points(evidence)
    except InconclusiveError:
        return []
    rows: list[tuple[str, ...]] = [
        ("all loop steps", "", number(full.evaluations), number(full.milliseconds))
    ]
    for point in points:
        name = criterion_name(point.criterion)
        if point.reason:
            rows.append((name, point.reason, "", ""))
        else:
            rows.append(
                (
                    name,
                    number(point.threshold),
                    number(point.evaluations),
                    number(point.milliseconds),
                )
            )
    return rows
