"""Text from the network first, everything else without it; and the same tokens on any number of cores."""

import os
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import hub as loopback
from tests.workflow.conftest import Project, environment

FINEWEB = {"source": "fineweb", "repository": loopback.REPOSITORY, "subset": "sample", "revision": "main"}
TOKENS = "results/tiny/data/tokens.json"
NOWHERE = dict.fromkeys(("HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    for number in range(2):
        texts = [f"file {number}, document {row}: " + "word " * (row % 9) for row in range(400)]
        pq.write_table(pa.table({"text": texts}), root / f"{number}.parquet")
    (root / "README.md").write_text("---\nconfigs:\n- config_name: sample\n  data_files: '*.parquet'\n---\n")
    return root


def snakemake(project: Project, variables: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        project.command(*arguments), cwd=project.root, env=environment() | variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.runs
def test_after_the_target_text_nothing_needs_the_network(fresh, repository, tmp_path):
    fresh.configure(data=FINEWEB | {"held_out_tokens": 1000})
    with loopback.serving(repository) as hub:
        snakemake(fresh, hub.environment(tmp_path / "home"), "text")
    assert not (fresh.root / TOKENS).exists()
    assert "rule prepare_text" not in snakemake(fresh, NOWHERE, TOKENS)


@pytest.mark.runs
def test_tokens_do_not_depend_on_the_number_of_cores_and_shards(fresh):
    contents = set()
    for cores, shards in (("1", 1), ("2", 3)):
        fresh.configure(data={"train_characters": 50000, "text_shards": shards})
        snakemake(fresh, dict(os.environ), "--cores", cores, TOKENS)
        contents.add(tuple((fresh.root / f"results/tiny/data/{part}.bin").read_bytes() for part in ("train", "val")))
    assert len(contents) == 1


@pytest.mark.runs
def test_an_edited_text_is_read_again_and_a_text_that_is_gone_is_not_needed(fresh):
    text = fresh.root / "text.txt"
    text.write_text(
        "".join(f"Chapter {n}.\n\n" + f"The lamp of evening {n} burned low. " * 40 + "\n\n" for n in range(99))
    )
    data = {"source": "txt", "path": "text.txt", "piece_characters": 100, "held_out_fraction": 0.3}
    fresh.configure(data=data | {"held_out_tokens": 2000, "train_characters": 20000})
    fresh.succeed(TOKENS)
    text.touch()
    assert fresh.plan(TOKENS) == {}
    content = text.read_text()
    text.write_text(content.replace("lamp", "LAMP", 1))
    assert "prepare_text" in fresh.plan(TOKENS)
    text.unlink()
    assert fresh.plan(TOKENS) == {}
