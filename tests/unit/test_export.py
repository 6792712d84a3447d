"""The export of a model: its code, tokenizer, files and card. tests/release loads it with
transformers.
"""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import safetensors
import yaml
from huggingface_hub import ModelCard
from tokenizers import Tokenizer as Engine

from tests import exported
from tests.exported import SEED
from tests.small import ROOT, train_config
from tests.synthetic_run import released
from twoscale import config as configs
from twoscale.base import InputError, markdown
from twoscale.claims.evidence import Evidence
from twoscale.config import ConfigSlice, plain
from twoscale.data import tokenizer as tokenizers
from twoscale.export import code_files, folder
from twoscale.export.__main__ import replace_code
from twoscale.export.folder import write_export
from twoscale.replay.check import check
from twoscale.replay.run_tables import read_run

TEXTS = (
    "Return the value.\n\n  x = [1, 2]\t# naïve — 日本語",
    "<|endoftext|> is text",
    "",
    " ",
    "a" * 40,
)


@pytest.fixture(scope="module")
def trained() -> str:
    return tokenizers.train_bpe(
        ["the loop and the state of the loop, naïve — 日本語\n\n  x = [1, 2]"] * 4, 290
    )


@pytest.mark.parametrize("name", ["bpe", "bytes", "ranks"])
def test_the_exported_tokenizer_encodes_and_decodes_as_the_one_of_the_run(trained, tmp_path, name):
    """A tokenizer of merges in tiktoken's format, such as GPT-2's, gets these in the format of
    `tokenizers`.
    """
    path = tmp_path / "tokenizer.json"
    path.write_text(trained, encoding="utf-8")
    ours = tokenizers.byte_level() if name == "bytes" else tokenizers.load_bpe(path)
    if name == "ranks":
        ours = replace(ours, name="gpt2")
    theirs = Engine.from_str(folder.tokenizer_json(ours, path))
    theirs.encode_special_tokens = True  # split_special_tokens of transformers
    for text in TEXTS:
        ids = ours.encode(text)
        assert theirs.encode(text).ids == ids
        assert theirs.decode(ids, skip_special_tokens=False) == text
    assert theirs.token_to_id(tokenizers.END_OF_TEXT) == ours.end_of_text
    assert theirs.get_vocab_size() == ours.vocab_size


def test_an_export_has_every_checkpoint_and_the_last_one_at_the_top(tmp_path):
    release = exported.export(tmp_path).folder
    files = {"config.json", "generation_config.json", "model.safetensors", *code_files()}
    files |= {"tokenizer.json", "tokenizer_config.json"}
    names = {"iteration_000000", "iteration_000020"}
    assert {path.name for path in release.iterdir()} == files | names | {"README.md"}
    for name in names:
        assert {path.name for path in (release / name).iterdir()} == files
    for name in files:
        assert (release / name).samefile(release / "iteration_000020" / name)
    first, last = (
        json.loads((release / f / "config.json").read_text()) for f in ("iteration_000000", ".")
    )
    assert (first["iteration"], last["iteration"], last["tokens_seen"]) == (0, 20, 1280)
    assert (last["run"], last["noise_seed"], last["max_loops"]) == ("small", SEED, 5)
    assert last["model"]["groups"] == [[2], [3]]
    with safetensors.safe_open(release / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert "model.groups.0.adapter.weight" in file.keys()  # noqa: SIM118 - not a mapping


def test_the_code_of_an_older_export_is_replaced_in_its_checkpoints_too(tmp_path):
    release = exported.export(tmp_path).folder
    names = (
        "modeling_twoscale.py",
        "iteration_000000/modeling_twoscale.py",
        "iteration_000020/modeling_twoscale.py",
    )
    weights = (release / "iteration_000000" / "model.safetensors").read_bytes()
    for name in names:
        (release / name).unlink()
        (release / name).write_text("older code")
    replace_code(release)
    for name in names:
        assert (release / name).read_text(encoding="utf-8") == code_files()["modeling_twoscale.py"]
    assert (release / "iteration_000000" / "model.safetensors").read_bytes() == weights
    with pytest.raises(
        InputError,
        match=r"found no modeling_twoscale\.py, expected the folder of an exported model\.",
    ):
        replace_code(tmp_path)


def test_a_checkpoint_of_another_seed_is_refused(tmp_path):
    path = exported.checkpoint(tmp_path, 0)
    config = ConfigSlice(dict(exported.job()._values) | {"seed": 12})
    with pytest.raises(
        InputError, match="belongs to another configuration: seed is 11 there, expected 12"
    ):
        write_export(tmp_path / "release", [path], tokenizers.byte_level(), None, config, {})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"source": "published", "folder": "/x"},
            "found a published model, expected one that is trained here",
        ),
        (
            {"architecture": "mine"},
            "found model.architecture: mine, expected transformer, the only architecture whose code",
        ),
    ],
)
def test_a_model_whose_code_or_weights_are_not_the_librarys_is_refused(changes, sentence, tmp_path):
    config = exported.job()
    config.model = exported.job().model.model_copy(update=changes)
    with pytest.raises(InputError, match=f"^results/small/export: {sentence}"):
        write_export(
            tmp_path / "export", [tmp_path / "none"], tokenizers.byte_level(), None, config, {}
        )
    assert not (tmp_path / "export").exists()


def rows(columns, *values) -> pd.DataFrame:
    return pd.DataFrame(values, columns=columns.split())


CLAIMS = rows(
    "claim scope verdict scale",
    (1, "2", "", ""),
    (1, "all", "holds", "small scale"),
    (2, "all", "not asked", ""),
)


def card(model=None, data=None, loss=3.25, **further) -> str:
    run = configs.runs({"preset": "tiny"})["tiny"]
    values = {name: plain(getattr(run, name)) for name in ("data", "tokenizer")}
    values |= {"data": data or values["data"]}
    values |= {"run": "small", "seed": SEED, "max_loops": 6, "train": plain(train_config())}
    config = ConfigSlice(values | {"model": plain(model or exported.job().model)})
    parts = {
        "train.bin": {"count": 4000, "documents": 7},
        "val.bin": {"count": 500, "documents": 3},
    }
    tokens = {"parts": parts, "digest": "ab" * 32, "vocab_size": 257}
    log = rows("iteration tokens_seen held_out_loss", (10, 640, np.nan), (20, 1280, loss))
    environments = [
        {"first_iteration": 1, "torch": "2.13.0"},
        {"first_iteration": 11, "torch": "2.13.0"},
    ]
    paths = [ROOT / f"iteration_{iteration:06d}.safetensors" for iteration in (0, 10, 20)]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return folder.card(config, paths, tokens, log, environments, citation, **further)


def front_matter(text):
    return yaml.safe_load(text.removeprefix("---\n").partition("---\n")[0])


def demo_evidence(**changes) -> Evidence:
    """The released tables of the demo."""
    folder = ROOT / "docs" / "demo-release" / "demo" / "tables"
    return replace(released(folder, max_loops=30, seed=1337), **changes)


def test_a_card_has_the_exits_at_equal_loss_of_the_claims():
    """Thresholds and evaluations are those of claims 10 and 14 in docs/results.md."""
    evidence = demo_evidence()
    text = card(evidence=evidence)
    for row in (
        "| all loop steps |  | 30 | 31.3 |",
        "| acceleration | 13.8 | 3.51 | 6.15 |",
        "| KL | 0.074 | 2.36 | 6.71 |",
        "| step norm | 3.31 | 2.44 | 4.9 |",
    ):
        assert row in text
    no_loss = evidence.exits.assign(ce=1.0)
    reason = (
        "| step norm | exits.criteria.step_norm.thresholds may end at equal quality, 31.6 |  |  |"
    )
    assert reason in card(evidence=demo_evidence(exits=no_loss))
    one_repeat = evidence.costs[evidence.costs["repeat"] == 0]
    assert "at equal loss" not in card(evidence=demo_evidence(costs=one_repeat))
    assert "at equal loss" not in card()


def metrics(text) -> dict:
    """Name -> value of the metrics of a card, as the hub reads them."""
    return {found.metric_name: found.metric_value for found in ModelCard(text).data.eval_results}


def test_a_card_has_depth_and_exits_as_the_check_and_the_claims_find_them():
    demo = ROOT / "docs" / "demo-release" / "demo"
    run = read_run(demo)
    result = check(run, lambda first: run.options(), 0.01)
    evidence = demo_evidence()
    text = card(evidence=evidence)
    assert f"**{markdown(result.sentence())}**" in text
    found = metrics(text)
    assert found["held-out loss in nats per token"] == 3.25
    at_full = "smallest fixed count within 0.01 nats of full depth"
    assert found[at_full] == result.fixed
    for group, of_group in evidence.regimes.items():
        assert found[f"regime of group {group}"] == of_group.name
        share = found[f"share of sequences that do not settle in group {group}"]
        assert share == pytest.approx(of_group.unsettled_share, abs=1e-4)
    assert "useful loops" not in found
    depth = rows(
        "group quantity value low high statement",
        ("", "trained_loops", 12, np.nan, np.nan, ""),
        ("", "best_loops", 9, 6, 12, ""),
        ("", "plateau_first", 6, 3, 6, ""),
    )
    text = card(evidence=evidence, depth_findings=depth)
    assert metrics(text)["useful loops"] == 6
    assert "| useful loops | 6 (3 … 6); trained with 12, lowest loss at 9 |" in text
    own = evidence.exits[evidence.exits["reference"] == "own"]
    assert "## Depth and exits" not in card(evidence=replace(evidence, exits=own))


def test_the_metadata_of_a_card_have_the_held_out_loss_as_the_hub_reads_it():
    (result,) = ModelCard(card()).data.eval_results
    assert (result.task_type, result.metric_type, result.metric_value) == (
        "text-generation",
        "loss",
        3.25,
    )
    assert (result.dataset_type, result.dataset_name) == (
        "python_docs",
        "Python documentation, held out",
    )
    data = plain(configs.DataConfig(source="fineweb"))
    (result,) = ModelCard(card(data=data)).data.eval_results
    assert result.dataset_type == data["repository"]
    assert "model-index" not in front_matter(card(loss=np.nan))


def test_a_card_has_claims_data_seed_checkpoints_licence_and_citation():
    text = card(claims=CLAIMS)
    assert front_matter(text)["library_name"] == "transformers"
    assert "datasets" not in front_matter(text)
    data = plain(configs.DataConfig(source="fineweb"))
    assert front_matter(card(data=data))["datasets"] == [data["repository"]]
    without_loops = card(exported.job(groups=()).model)
    assert "4 layers without loops." in without_loops
    assert not [
        words
        for words in ("exit_criterion", "loop step", "## The claims", "draw noise")
        if words in without_loops
    ]
    for part in (
        "| 1 | Steps shrink within ten | **holds, small scale** |",
        "Python documentation; 4,000 tokens of 7 documents for training, 500 of 3 held out",
        "| `iteration_000020` | 1,280 | 3.25 |",
        "| `num_layers` | `4` | `12` |",
        "@article{pappone2025",
    ):
        assert part in text
