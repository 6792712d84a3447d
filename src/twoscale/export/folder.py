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
from twoscale.claims import loop_counts
from twoscale.claims.estimates import InconclusiveError
from twoscale.claims.evidence import Evidence
from twoscale.claims.exits import EQUAL_QUALITY, equal_quality_points
from twoscale.claims.scale import MEANING
from twoscale.claims.verdicts import ALL, CLAIMS
from twoscale.claims.words import marked
from twoscale.config import ConfigSlice, ModelConfig, complete, plain, text_label
from twoscale.config.criteria import criterion_name
from twoscale.data.tokenizer import CHARACTER_TO_BYTE, END_OF_TEXT, Tokenizer
from twoscale.exits.references import RANDOM
from twoscale.exits.table import operating_points
from twoscale.export import check_exported, code_files
from twoscale.jobs.machine import FIRST, Environment
from twoscale.model.checkpoints import CHECKPOINT, Header, load_weights
from twoscale.model.flops import parameters
from twoscale.replay import hub
from twoscale.replay.run_tables import of_exits
from twoscale.report.render import number, render

WEIGHTS, CONFIG, _GENERATION = "model.safetensors", "config.json", "generation_config.json"
_MODULE = "model"  # attribute of the class in transformers that is the library's model
# Keys of the section `model` that say where a model comes from; an exported model comes from its
# folder.
_ORIGIN = ("architecture", "source", "repository", "revision", "folder")
_PADDING = "<|padding|>"
_BYTE_TO_CHARACTER = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}


def write_export(
    folder: Path,
    checkpoints: Sequence[Path],
    tokenizer: Tokenizer,
    tokenizer_file: Path | None,
    config: ConfigSlice,
    texts: dict[str, str],
) -> None:
    """Write the export of a run: all its checkpoints, the last one last, and its tokenizer.

    `config` is the slice with `run`, `seed`, `model` and `max_loops`; a tokenizer that was trained
    here has a file; `texts` are further files, name -> content. Raises InputError for a model that
    cannot be exported, and for checkpoints of another run or damaged ones.
    """
    check_exported(config.run, config.model)
    # Padding comes before a text, as decoding needs it. Its token is none of the vocabulary:
    # transformers gives it the next id, and the model reads it as the end of text. A special token
    # that is spelled out in a text is encoded as ordinary text, as here.
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": _PADDING,
        "model_max_length": config.model.context_length,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    common = code_files() | {
        "tokenizer.json": tokenizer_json(tokenizer, tokenizer_file),
        "tokenizer_config.json": _json(tokenizer_config),
    }
    for name, text in (common | texts).items():
        _write(folder / name, text)
    for checkpoint in checkpoints:
        _write_checkpoint(folder / checkpoint.stem, checkpoint, tokenizer, config)
        for name in common:
            link(folder / name, folder / checkpoint.stem / name)
    # the folder itself is the last checkpoint
    for name in (WEIGHTS, CONFIG, _GENERATION):
        link(folder / checkpoints[-1].stem / name, folder / name)


def _write_checkpoint(
    folder: Path, checkpoint: Path, tokenizer: Tokenizer, config: ConfigSlice
) -> None:
    identity = {"model": plain(config.model), "seed": config.seed}
    weights, header = load_weights(checkpoint, identity, config.model, "cpu")
    # names in the class of transformers, which has the model as an attribute
    named = {f"{_MODULE}.{name}": tensor for name, tensor in weights.items()}
    with replacing(folder / WEIGHTS) as temporary:
        save_file(named, temporary, metadata={"format": "pt"})  # which transformers requires
    _write(folder / CONFIG, _json(model_config(config, header, tokenizer)))
    generation = {
        "bos_token_id": tokenizer.end_of_text,
        "eos_token_id": tokenizer.end_of_text,
        "pad_token_id": tokenizer.vocab_size,
    }
    _write(folder / _GENERATION, _json(generation))


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
    return {key: value for key, value in complete(model).items() if key not in _ORIGIN}


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


# --- tokenizer.json -------------------------------------------------------------------------------


def tokenizer_json(tokenizer: Tokenizer, path: Path | None) -> str:
    """The file `path` of a tokenizer that was trained here; others from the ranks of their merges.

    Others, gpt2 and bytes, do not read `path`. A rank is the id of the merged token.
    """
    if tokenizer.name == "bpe":
        assert path is not None
        return path.read_text(encoding="utf-8")

    def characters(token: bytes) -> str:
        return "".join(_BYTE_TO_CHARACTER[byte] for byte in token)

    ranks = tokenizer.encoding._mergeable_ranks  # bytes -> id
    vocab = {characters(token): rank for token, rank in ranks.items()}
    merged = [(characters(left), characters(right)) for left, right in _merges(ranks)]
    engine = Engine(models.BPE(vocab=vocab, merges=merged))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return engine.to_str(pretty=True)


def _merges(ranks: Mapping[bytes, int]) -> Iterator[list[bytes]]:
    """The two tokens that each longer token merges, in the order of the ranks."""
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        # the merges before `rank` join the bytes of the token into two parts
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            joined = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
            # of equal ranks the first pair is merged first
            i = joined.index(min(joined))
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            yield parts


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
    depth_findings: "pd.DataFrame | None" = None,
) -> str:
    """The model card: the model, its training text, its exits, and the verdicts on the claims.

    `tokens` and `citation` are the contents of tokens.json and CITATION.cff, `log` and `claims` the
    tables "training" and "claims"; a model without loops has neither claims nor `evidence` for
    them, with its section on depth and exits. `depth_findings` is the table "depth_findings",
    without which the section has no useful loops. The bits of training depend on the `environments`
    of all segments, besides config (with `run`, `seed`, `model`, `data`, `tokenizer`, `train` and
    `max_loops`) and code.
    """
    at = log.set_index("iteration")
    iterations = []  # sub-folder, tokens seen, held-out loss
    loss = math.nan
    for path in checkpoints:
        i = int(CHECKPOINT.fullmatch(path.name)[1])  # type: ignore[index]
        loss = at["held_out_loss"].get(i, math.nan)
        seen = at["tokens_seen"].get(i, 0)
        iterations.append((f"`iteration_{i:06d}`", f"{seen:,}", number(loss)))

    front: dict[str, Any] = {
        "license": "mit",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["looped-transformer", "recurrent-depth", "twoscale"],
    }
    if config.data.source == "fineweb":
        front["datasets"] = [config.data.repository]
    text = text_label(config.data)
    facts = []
    if not math.isnan(loss):  # of the last checkpoint
        name, value = "held-out loss in nats per token", round(float(loss), 4)
        facts.append(hub.Fact("loss", name, value, number(loss)))
    depth = ""
    if evidence is not None and operating_points(evidence.exits, RANDOM):
        if depth_findings is None:
            loops = evidence.loops
            last = loops[loops["iteration"] == loops["iteration"].max()]
            depth_findings = pd.DataFrame(loop_counts.regimes(last))
        run = of_exits(Path(config.run), evidence.exits)
        sentence, measured = hub.measured(depth_findings, run, "float32", EQUAL_QUALITY)
        depth = hub.section(f"{text}, held out", sentence, measured)
        facts += measured
    if facts:
        source = config.data.source
        dataset = config.data.repository if source == "fineweb" else source
        front |= hub.model_index(config.run, dataset, f"{text}, held out", facts)

    paper = _section(ModelConfig())
    keys = []  # key, value, value in the paper's model where it differs
    for name, value in _section(config.model).items():
        theirs = "" if value == paper[name] else f"`{json.dumps(paper[name])}`"
        keys.append((f"`{name}`", f"`{json.dumps(value)}`", theirs))

    # without the iteration at which each environment begins
    shown = [
        ", ".join(f"{name} {found[name]}" for name in found if name != FIRST)
        for found in environments
    ]
    verdicts = []
    if claims is not None:
        titles = {claim.number: claim.title for claim in CLAIMS}
        for row in claims[claims["scope"] == ALL].itertuples():
            word = f"**{marked(row.verdict, row.scale)}**"
            verdicts.append((row.claim, titles[row.claim], word))
    return render(
        "export/card.md.j2",
        front=yaml.safe_dump(front, sort_keys=False),
        config=config,
        model=config.model,
        parameters=f"{parameters(config.model):,}",
        keys=keys,
        text=markdown(text),
        parts=tokens["parts"],
        tokens=tokens,
        trained=log.iloc[-1],
        environment=markdown("; then ".join(dict.fromkeys(shown))),
        iterations=iterations,
        equal_quality=EQUAL_QUALITY,
        exits=[] if evidence is None else exit_rows(evidence),
        depth=depth,
        claims=verdicts,
        meaning=MEANING,
        works=[citation, *citation["references"]],
    )


def exit_rows(evidence: Evidence) -> list[tuple[str, str, str, str]]:
    """Criterion, threshold, evaluations and milliseconds at equal loss.

    Empty where too little was measured.
    """
    try:
        full, *points = equal_quality_points(evidence)
    except InconclusiveError:
        return []
    rows = [("all loop steps", "", number(full.evaluations), number(full.milliseconds))]
    for point in points:
        cells = (point.reason, "", "")
        if not point.reason:
            values = (point.threshold, point.evaluations, point.milliseconds)
            cells = tuple(map(number, values))  # type: ignore[assignment]
        rows.append((criterion_name(point.criterion), *cells))
    return rows
