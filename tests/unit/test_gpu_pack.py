"""The pack for a machine without a network: its files, and the schedule that fits the time there."""

import json
import lzma
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.small import ROOT, learnable_tokens, shard_part
from tests.small import project as runs
from twoscale import config
from twoscale.base import InputError
from twoscale.gpu import pack, speed
from twoscale.gpu.schedule import RESERVE, schedule
from twoscale.model.flops import flops_per_token
from twoscale.training.plan import mean_flops_per_token
from twoscale.training.recipe import draw_loops, learning_rate

HALF_HOUR = config.checked(config.preset("half-hour"))
TINY = config.checked(config.preset("tiny"))


@pytest.mark.parametrize(
    ("tokenizer", "file"),
    [("bytes", []), ("bpe", ["results/tiny/data/tokenizer.json"]), ("gpt2", ["results/gpt2.tiktoken"])],
)
def test_tokens_and_the_file_of_their_tokenizer_travel(tokenizer, file):
    data = [f"results/tiny/data/{name}" for name in ("train.bin", "val.bin", "tokens.json")]
    assert pack.training_files(runs(tokenizer={"name": tokenizer})) == data + file


def test_unpacked_files_have_the_bytes_and_paths_of_the_packed_ones_and_files_that_are_there_stay(
    tmp_path, monkeypatch
):
    files = {"results/tiny/data/train.bin": bytes(range(256)) * 999, "results/gpt2.tiktoken": b"ranks\n"}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
        packed = tmp_path / "pack" / pack.FILES / f"{name}.xz"
        packed.parent.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(content))
    assert sum(path.stat().st_size for path in (tmp_path / "pack").rglob("*.xz")) < 2000
    (tmp_path / "pack" / pack.MANIFEST).touch()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    pack.unpack(tmp_path / "pack")
    assert {str(path): path.read_bytes() for path in Path("results").rglob("*") if path.is_file()} == files
    Path("results/gpt2.tiktoken").write_bytes(b"mine")
    pack.unpack(tmp_path / "pack")
    assert Path("results/gpt2.tiktoken").read_bytes() == b"mine"


def test_the_digest_of_the_code_changes_with_the_code_and_nothing_else(tmp_path):
    for part in ("Snakefile", "src", "scripts", "workflow"):
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / part)
    digest = pack.code_digest(tmp_path)
    assert digest == pack.code_digest(ROOT)
    (tmp_path / "results").mkdir()
    (tmp_path / "src/twoscale/more.pyc").write_bytes(b"")
    assert pack.code_digest(tmp_path) == digest
    (tmp_path / "workflow/presets/tiny.yaml").open("a").write("\n")
    assert pack.code_digest(tmp_path) != digest


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"preset": "ouro-1.4b"}, "run ouro-1.4b: found a published model, but only trained models can be packed."),
        ({"train": {"processes": 2}}, "config key train.processes: found 2, expected 1 for a pack."),
    ],
)
def test_what_a_pack_cannot_run_is_refused(tmp_path, values, sentence):
    with pytest.raises(InputError) as error:
        pack._check(runs(**values), tmp_path)
    assert str(error.value) == sentence


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="found files that do not belong to a pack"):
        pack.make(tmp_path, "tiny", [], "3.12")
    assert (tmp_path / "thesis.tex").exists()


def test_a_pack_that_is_too_large_is_refused_with_its_size(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(pack.MOST_BYTES)
    assert pack._checked_size(tmp_path) == pack.MOST_BYTES
    (tmp_path / "one").write_bytes(b"1" * 10**5)
    with pytest.raises(InputError, match=r"found 50\.1 MB, expected at most 50 MB"):
        pack._checked_size(tmp_path)


# scripts of pages and downloads, whose packages stay behind
ABSENT = ("datasets", "httpx2", "huggingface_hub", "itables", "markdown", "plotly")
WITHOUT_THEM = {"fetch_gpt2", "fetch_model", "prepare_text"}


def test_every_script_but_those_of_downloads_and_pages_starts_without_the_packages_of_these():
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({ABSENT}))\n"
        "for name in sys.argv[1:]:\n"
        "    try: runpy.run_path(f'scripts/{name}.py', run_name='job')\n"
        "    except ImportError: print(name)"
    )
    names = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= WITHOUT_THEM


def seconds_of(run: config.Config, train: config.TrainConfig, flops_per_s: float, startup: float) -> float:
    """Time of the training jobs of a schedule at this speed."""
    flops = mean_flops_per_token(run.model, run.train).total * run.train.batch_size * run.model.context_length
    return train.iterations * flops / flops_per_s + startup * len(config.checkpoint_iterations(train))


@given(st.sampled_from([HALF_HOUR, TINY]), st.floats(1e9, 1e16), st.floats(0.1, 100.0), st.floats(-100, 1e5))
def test_a_schedule_fits_its_time_and_ends_with_a_checkpoint_at_the_end_of_the_cosine(run, rate, startup, seconds):
    keys = schedule(run, rate, startup, seconds)
    chosen = config.checked(config.merge(config.user_values(run), {"train": keys})).train
    assert seconds_of(run, chosen, rate, startup) <= max(seconds, 0) or chosen.iterations == 1
    assert config.checkpoint_iterations(chosen)[-1] == chosen.iterations == chosen.lr_decay_iterations
    assert set(config.checkpoint_iterations(chosen)[:-1]) <= set(config.checkpoint_iterations(run.train))
    assert learning_rate(chosen, chosen.iterations) == run.train.min_learning_rate
    assert chosen.warmup_iterations <= chosen.iterations / 10


def test_the_iterations_use_the_time_and_the_checkpoints_are_those_of_the_preset():
    keys = schedule(HALF_HOUR, flops_per_s=350e12, startup=20.0, seconds=900.0)
    chosen = config.checked(config.merge(config.preset("half-hour"), {"train": keys})).train
    assert config.checkpoint_iterations(chosen) == [500, 1000, 2000, 5000, 10000, chosen.iterations]
    assert chosen.warmup_iterations == 1000
    assert 0.98 * RESERVE * 900 < seconds_of(HALF_HOUR, chosen, 350e12, 20.0) < 900


def test_a_constant_rate_stays_constant():
    keys = schedule(config.checked(config.preset("huginn-like")), 1e15, 10.0, 3600.0)
    assert keys["lr_decay_iterations"] is None


def test_the_speed_is_that_of_the_flops_of_the_drawn_loops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "results/tiny/data"
    data.mkdir(parents=True)
    parts = {"train.bin": learnable_tokens(900), "val.bin": learnable_tokens(400)}
    for name, ids in parts.items():
        ids.tofile(data / name)
    counts = {name: shard_part(ids) for name, ids in parts.items()}
    (data / "tokens.json").write_text(
        json.dumps({"dtype": "uint16", "end_of_text": 256, "parts": counts, "digest": "of no text"})
    )
    clock = count()
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(speed, "LEAST", 4)
    measured = speed.flops_per_s(runs(), 0.0)
    # one read at the beginning and two at the end, and as many in each of the six iterations
    reads_of_an_iteration = (next(clock) - 3) / (speed.WARM_UP + 4)
    loops = [draw_loops(TINY.model, TINY.seed, iteration) for iteration in range(speed.WARM_UP, speed.WARM_UP + 4)]
    flops = sum(flops_per_token(TINY.model, drawn).total for drawn in loops) * 4 * 32
    assert measured == pytest.approx(flops / (4 * reads_of_an_iteration + 2))
