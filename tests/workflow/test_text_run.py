"""Text from the network first, everything else without it; and the same tokens on any number of
cores.
"""

import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import hub as loopback

pytestmark = pytest.mark.runs

FINEWEB = {
    "source": "fineweb",
    "repository": loopback.REPOSITORY,
    "subset": "sample",
    "revision": "main",
}
TOKENS = "results/tiny/data/tokens.json"
NOWHERE = dict.fromkeys(("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.fixture
def fineweb(fresh, tmp_path):
    """The variables under which a data set on this machine is that of the config."""
    repository = tmp_path / "repository"
    repository.mkdir()
    for number in range(2):
        texts = [f"file {number}, document {row}: " + "word " * (row % 9) for row in range(400)]
        pq.write_table(pa.table({"text": texts}), repository / f"{number}.parquet")
    (repository / "README.md").write_text(
        "---\nconfigs:\n- config_name: sample\n  data_files: '*.parquet'\n---\n"
    )
    fresh.configure(data=FINEWEB | {"held_out_tokens": 1000, "text_shards": 1})
    with loopback.serving(repository) as hub:
        yield hub.environment(tmp_path / "home")


def test_after_the_target_text_nothing_needs_the_network(fresh, fineweb):
    fresh.succeed("text", **fineweb)
    assert not (fresh.root / TOKENS).exists()
    assert "rule download_text" not in fresh.succeed(TOKENS, **NOWHERE).stderr
    # results can be made again without it, also those of another run on the same text
    tokens = (fresh.root / TOKENS).read_bytes()
    shutil.rmtree(fresh.root / "results")
    assert "rule download_text" not in fresh.succeed(TOKENS, **NOWHERE).stderr
    assert (fresh.root / TOKENS).read_bytes() == tokens
    assert "download_text" not in fresh.plan(
        TOKENS.replace("tiny", "other"), "--config", "run=other"
    )


def test_a_text_that_an_earlier_version_downloaded_is_not_downloaded_again(fresh, fineweb):
    fresh.succeed("text", **fineweb)
    (shard,) = (fresh.root / "resources/text").glob("*/*/shard_000.parquet")
    (fresh.root / "results/tiny/data").mkdir(parents=True, exist_ok=True)
    shard.parent.rename(fresh.root / "results/tiny/data/text")
    shutil.rmtree(fresh.root / "resources")
    fresh.succeed(TOKENS, **NOWHERE)
    assert not (fresh.root / "resources/text").exists()


def test_what_a_command_shows_is_what_holds(fresh):
    shown = fresh.succeed("-n", "-p", "results/tiny/data/text/shard_000.parquet").stdout
    (job,) = set(re.findall(r"--job (\S+)", shown))
    config = (fresh.root / job).read_text()
    for key, value in (("held_out_tokens", 40960), ("train_characters", 400000)):
        assert f'"{key}":{value}' in config.replace("\\", "").replace(" ", "")
    assert "1000000" not in config


def test_tokens_do_not_depend_on_the_number_of_cores_and_shards(finished, fresh):
    fresh.configure(data={"text_shards": 3})
    fresh.succeed("--cores", "1", TOKENS)
    for part in ("train", "val"):
        expected = (finished.root / f"results/tiny/data/{part}.bin").read_bytes()
        assert (fresh.root / f"results/tiny/data/{part}.bin").read_bytes() == expected
