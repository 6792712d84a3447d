"""Text from the network first, everything else without it; and the same tokens on any number of cores."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import hub as loopback

pytestmark = pytest.mark.runs

FINEWEB = {"source": "fineweb", "repository": loopback.REPOSITORY, "subset": "sample", "revision": "main"}
TOKENS = "results/tiny/data/tokens.json"
NOWHERE = dict.fromkeys(("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


def test_after_the_target_text_nothing_needs_the_network(fresh, tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    for number in range(2):
        texts = [f"file {number}, document {row}: " + "word " * (row % 9) for row in range(400)]
        pq.write_table(pa.table({"text": texts}), repository / f"{number}.parquet")
    (repository / "README.md").write_text("---\nconfigs:\n- config_name: sample\n  data_files: '*.parquet'\n---\n")
    fresh.configure(data=FINEWEB | {"held_out_tokens": 1000, "text_shards": 1})
    with loopback.serving(repository) as hub:
        fresh.succeed("text", **hub.environment(tmp_path / "home"))
    assert not (fresh.root / TOKENS).exists()
    assert "rule prepare_text" not in fresh.succeed(TOKENS, **NOWHERE).stderr


def test_tokens_do_not_depend_on_the_number_of_cores_and_shards(finished, fresh):
    fresh.configure(data={"text_shards": 3})
    fresh.succeed("--cores", "1", TOKENS)
    for part in ("train", "val"):
        expected = (finished.root / f"results/tiny/data/{part}.bin").read_bytes()
        assert (fresh.root / f"results/tiny/data/{part}.bin").read_bytes() == expected
