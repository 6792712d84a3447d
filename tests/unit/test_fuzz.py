"""Every reader of foreign data ends in a result or in one sentence, whatever the bytes are."""

import gzip
import io
import json
import math
import shutil

import httpx2
import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import strategies as st
from safetensors.torch import save

from tests import published
from tests.fuzzing import assert_read_or_refused, bent, changed, json_bytes, several, try_all
from tests.small import job_config, learnable_tokens, model_config, shard_part
from twoscale.base import canonical_json
from twoscale.config import DataConfig, DownloadConfig, loading, plain
from twoscale.data import hub, ingestion
from twoscale.data.batches import open_held_out
from twoscale.data.ingestion import Parts, PendingPart
from twoscale.data.published_tokenizer import load_published
from twoscale.data.shards import HeldOutQuota, join_tokens
from twoscale.data.text import Document, iter_shards, rows
from twoscale.data.text_files import local_documents
from twoscale.data.token_files import TokenShard, read_digest
from twoscale.data.tokenizer import load_tokenizer, train_bpe
from twoscale.exits.criteria import make_criterion
from twoscale.exits.criterion_file import load_criterion
from twoscale.jobs.fingerprint import criterion_file_fingerprint
from twoscale.model import checkpoints
from twoscale.model.published.folder import PublishedFolder
from twoscale.model.published.weights import open_published
from twoscale.model.trained_run import open_run
from twoscale.model.transformer import initialise
from twoscale.training.state import MOMENTS, PARTS, Segment, load_moments, load_partial

MODEL = model_config()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SUBSET = hub.Subset("somebody/text", COMMIT, ("a.parquet",))
ONCE = DownloadConfig(retries=0, delay=0.0, max_delay=0.0, timeout=1.0)


@several
def test_a_config_is_read_or_refused(tmp_path, cases):
    path = tmp_path / "config.yaml"
    values = {name: loading.preset(name) for name in ("tiny", "paper")} | {
        "runs": {"run": "a", "runs": {"b": {"seed": 2}}}
    }

    def read(content: bytes) -> None:
        path.write_bytes(content)
        layers = loading.read_yaml(path)
        loading.runs(layers)
        loading.studies(layers)

    changes = st.one_of(*map(changed, values.values())).map(lambda value: yaml.dump(value).encode())
    assert_read_or_refused(changes | bent(yaml.dump(values["tiny"]).encode()) | st.binary(max_size=30), read, cases)


COLUMNS = st.one_of(
    st.lists(st.none() | st.text(max_size=5), min_size=3, max_size=3).map(lambda column: pa.array(column, pa.string())),
    st.lists(st.binary(max_size=5), min_size=3, max_size=3).map(pa.array),
    st.lists(st.floats(), min_size=3, max_size=3).map(pa.array),
    st.sampled_from([pa.int64(), pa.timestamp("ns", "UTC"), pa.duration("ns"), pa.date64(), pa.time64("ns")]).flatmap(
        lambda kind: st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3).map(
            lambda column: pa.array(column, pa.int64()).view(kind)
        )
    ),
    st.just(pa.array([[b"\xff"], None, []])),
    st.just(pa.array([{"a": 1}, None, {"a": 2}])),
    st.just(pa.nulls(3)),
    st.just(pa.Array.from_buffers(pa.string(), 3, pa.array([b"\xff", b"a", b""]).buffers())),  # not UTF-8
)


def parquet(columns: dict[str, pa.Array]) -> bytes:
    written = io.BytesIO()
    try:
        pq.write_table(pa.table(columns), written)
    except (pa.ArrowException, ValueError):  # a type that parquet lacks
        return b"PAR1"
    return written.getvalue()


@several
def test_a_parquet_file_is_read_or_refused(tmp_path, cases):
    path = tmp_path / "text.parquet"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try_all(lambda: list(rows(io.BytesIO(content), "file", "file", 10**6)), lambda: list(iter_shards([path])))

    columns = st.dictionaries(st.sampled_from(["id", "text", "held_out", "document"]), COLUMNS).map(parquet)
    good = parquet({"id": pa.array([1, 2]), "text": pa.array(["a", "b"])})
    shard = {"document": pa.array(["1"]), "held_out": pa.array([True]), "text": pa.array(["a"])}
    contents = st.one_of(columns, bent(good), bent(parquet(shard)), st.binary(max_size=40))
    assert_read_or_refused(contents, read, cases)


@several
@pytest.mark.parametrize("source", ["txt", "jsonl"])
def test_a_file_of_lines_is_read_or_refused(tmp_path, source, cases):
    line = json.dumps({"text": "some text.\n", "id": 1}).encode()

    def read(case: tuple[bytes, bool, int | None]) -> None:
        content, compressed, size = case
        path = tmp_path / f"a.{source}{'.gz' if compressed else ''}"
        path.write_bytes(content)
        data = DataConfig(source=source, path=str(path)).model_copy(update={"piece_characters": size})
        for document in local_documents(data, tmp_path / "cache"):
            assert document.text

    contents = st.lists(json_bytes({"text": "a", "id": 1}) | st.text(max_size=9).map(str.encode), max_size=3)
    plain_bytes = contents.map(b"\n".join) | bent(line) | st.binary(max_size=40)
    compressed = plain_bytes.map(gzip.compress) | bent(gzip.compress(line, mtime=0))
    sizes = st.none() | st.integers(1, 5)
    of_both = st.tuples(plain_bytes, st.booleans(), sizes) | st.tuples(compressed, st.just(True), sizes)
    assert_read_or_refused(of_both, read, cases)


@several
def test_a_tokenizer_is_read_or_refused(tmp_path, cases):
    path = tmp_path / "tokenizer.json"
    trained = json.loads(train_bpe(["aaa bbb aaa bbb"], 259))

    def read(content: bytes) -> None:
        path.write_bytes(content)
        load_tokenizer("bpe", path).encode("abc")

    assert_read_or_refused(json_bytes(trained), read, cases)


@several
def test_token_shards_are_read_or_refused(tmp_path, cases):
    shard = TokenShard(*(tmp_path / name for name in ("train.bin", "val.bin", "tokens.json")))
    joined = TokenShard(*(tmp_path / "joined" / path.name for path in shard))
    good = learnable_tokens(40)
    metadata = {"dtype": "uint16", "tokenizer": "bytes", "vocab_size": 37, "end_of_text": 36, "digest": "ab"}

    def read(case: tuple[bytes, bytes]) -> None:
        shard.val.write_bytes(case[0])
        shard.train.write_bytes(case[0])
        shard.metadata.write_bytes(case[1])
        try_all(
            lambda: open_held_out(shard.val, shard.metadata, MODEL, 2),
            lambda: read_digest(shard.metadata),
            lambda: join_tokens([shard], joined, 9, 4, 8, HeldOutQuota("characters", 9, 1.5, 0.5)),
        )

    def described(ids: np.ndarray) -> st.SearchStrategy[tuple[bytes, bytes]]:
        values = metadata | {"parts": {"val.bin": shard_part(ids)}}
        return st.tuples(st.just(ids.tobytes()), json_bytes(values))

    ids = st.lists(st.integers(0, 80), max_size=40).map(lambda values: np.array(values, "<u2"))
    contents = st.one_of(described(good), ids.flatmap(described), st.tuples(bent(good.tobytes()), json_bytes(metadata)))
    assert_read_or_refused(contents, read, cases)


DTYPES = [torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
BAD_VALUES = [math.nan, math.inf, -math.inf, -1.0]


@st.composite
def other_tensors(draw: st.DrawFn, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of which one may be missing, be called otherwise, or have another shape, dtype or value."""
    tensors = dict(tensors)
    name = draw(st.sampled_from(sorted(tensors)))
    tensor = tensors.pop(name).clone()
    match draw(st.sampled_from(["same", "missing", "name", "shape", "dtype", "value"])):
        case "name":
            name = draw(st.text(max_size=5))
        case "shape":
            tensor = draw(st.sampled_from([tensor[:-1], tensor.flatten(), tensor[None], torch.zeros(()), tensor[:0]]))
        case "dtype":
            tensor = tensor.to(draw(st.sampled_from(DTYPES)))
        case "value":
            tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = draw(st.sampled_from(BAD_VALUES))
        case "missing":
            return tensors
    return tensors | {name: tensor.contiguous()}


def checkpoint_bytes(tensors: dict[str, torch.Tensor], header: dict) -> st.SearchStrategy[bytes]:
    """Safetensors files without a digest, as a stranger would write them."""
    texts = json_bytes(header).map(lambda content: content.decode(errors="replace"))

    def written(tensors: dict[str, torch.Tensor], text: str) -> bytes:
        return save(tensors, metadata={checkpoints.METADATA_KEY: text})

    good = canonical_json(header)
    return st.one_of(
        other_tensors(tensors).map(lambda others: written(others, good)),
        texts.map(lambda text: written(tensors, text)),
        bent(written(tensors, good)),
        st.binary(max_size=60),
    )


def model_tensors() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights of the small model and moments of AdamW."""
    weights = initialise(MODEL, seed=1).state_dict()
    return weights, {f"{name}.{moment}": value.abs() for name, value in weights.items() for moment in MOMENTS}


@several
def test_a_checkpoint_is_read_or_refused(tmp_path, cases):
    data = tmp_path / "run" / "data"
    data.mkdir(parents=True)
    (data / "tokens.json").write_text(json.dumps({"tokenizer": "bytes", "digest": "ab"}))
    path = tmp_path / "run" / "checkpoints" / "iteration_000002.safetensors"
    path.parent.mkdir()
    config = model_config(vocab_size=257)
    identity = {"seed": 1, "data": "ab", "model": plain(config)}
    header = {"kind": "weights", "iteration": 2, "tokens_seen": 9, "identity": identity, "extra": {}}

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try_all(lambda: checkpoints.load_model(path, config, torch.float32, "cpu"), lambda: open_run(tmp_path / "run"))

    assert_read_or_refused(checkpoint_bytes(initialise(config, seed=1).state_dict(), header), read, cases)


@several
def test_moments_and_a_partial_state_are_read_or_refused(tmp_path, cases, capsys):
    path, config = tmp_path / "state.safetensors", job_config()
    weights, moments = model_tensors()
    partial = {
        f"{prefix}{name}": value
        for prefix, part in zip(PARTS, (weights, moments), strict=True)
        for name, value in part.items()
    }
    row = dict.fromkeys(("loss", "held_out_loss", "learning_rate", "gradient_norm", "tokens_per_s", "tflops"), 0.5)
    row |= {"iteration": 1, "tokens_seen": 4, "utilisation": None, "loops": [1, 2]}
    header = {"iteration": 1, "tokens_seen": 4, "identity": {"seed": 1}}

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try_all(
            lambda: load_moments(path, {"seed": 1}, config, 1),
            lambda: load_partial(path, 0, Segment(3, {"seed": 1}), config),
        )

    contents = st.one_of(
        checkpoint_bytes(moments, header | {"kind": "optimizer", "extra": {}}),
        checkpoint_bytes(partial, header | {"kind": "partial", "extra": {"log": [row]}}),
    )
    assert_read_or_refused(contents, read, cases)


@several
def test_a_manifest_of_parts_is_read_or_refused(tmp_path, cases):
    identity = {"source": "fineweb"}
    good = Parts(tmp_path / "good", identity)
    good.commit = COMMIT
    good.append(PendingPart("a.parquet", "tag", [Document("1", "text", 0)]), [4])
    manifest = json.loads((good.folder / ingestion.MANIFEST).read_text())
    part = (good.folder / "part_00000.parquet").read_bytes()
    folder = tmp_path / "parts"

    def read(content: bytes) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "part_00000.parquet").write_bytes(part)
        (folder / ingestion.MANIFEST).write_bytes(content)
        list(Parts(folder, identity).documents())

    assert_read_or_refused(json_bytes(manifest), read, cases)


@pytest.fixture
def answers():
    """The answers of the Hub to each request in turn: status, headers and content. No request leaves the process."""
    pending = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        status, headers, content = pending[0]
        return httpx2.Response(status, headers=headers, content=content, request=request)

    huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=httpx2.MockTransport(answer)))
    yield pending
    huggingface_hub.set_client_factory(httpx2.Client)


INFO = {
    "_id": "0",
    "id": "somebody/text",
    "sha": COMMIT,
    "cardData": {
        "configs": [
            {"config_name": "a", "data_files": [{"split": "train", "path": ["data/*", "more/*.parquet"]}]},
            {"config_name": "b", "data_files": "data/*"},
        ]
    },
    "siblings": [{"rfilename": "data/0.parquet"}, {"rfilename": "config.json"}, {"rfilename": "model.safetensors"}],
}
STATUSES = st.sampled_from([200, 200, 200, 200, 206, 301, 404, 401, 500, 503])


@several
def test_a_card_and_other_answers_of_the_hub_are_read_or_refused(answers, cases):
    from twoscale.data.model_files import resolve_model

    def read(answer: tuple[int, dict[str, str], bytes]) -> None:
        answers[:] = [answer]
        try_all(
            lambda: hub.resolve("somebody/text", "a", "main", ONCE),
            lambda: resolve_model("somebody/text", "main", ONCE),
        )

    headers = st.just({"Content-Type": "application/json"})
    assert_read_or_refused(st.tuples(STATUSES, headers, json_bytes(INFO)), read, cases)


@several
def test_the_content_of_a_file_of_the_hub_is_read_or_refused(answers, cases):
    def read(answer: tuple[int, dict[str, str], bytes]) -> None:
        answers[:] = [answer]
        with hub.open_file(SUBSET, "a.parquet", ONCE) as opened:
            opened.read(10)

    ranges = st.sampled_from(["bytes 0-0/1", "bytes 0-0/-1", "0", "bytes 0-0/*", "bytes 0-0/99999999999999999999"])
    latin = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
    headers = st.fixed_dictionaries({"Content-Range": ranges | latin}, optional={"ETag": latin, "x-linked-etag": latin})
    assert_read_or_refused(st.tuples(STATUSES, headers, st.binary(max_size=3)), read, cases)


STATEMENTS = [
    "from twoscale.exits.criteria import Acceleration, ExitCriterion, StepNorm",
    "raise SystemExit(3)",
    "raise ValueError('x')",
    "import nothing_of_this_name",
    "class Mine(StepNorm):\n    pass",
    "class Mine(ExitCriterion):\n    def start(self, x0): return {}\n    def update(self, state, x_new, readout): pass",
    "class Mine(StepNorm):\n    keeps = []",
    "class Mine(StepNorm):\n    patience = 'two'",
    "class Mine(StepNorm):\n    def __init__(self): pass",
    "class Mine(StepNorm):\n    start = 3",
    "class Mine(StepNorm):\n    returns = 1",
    "class Mine(StepNorm):\n    @property\n    def keeps(self): return 1",
    "Mine = 3",
    "def Mine(threshold): return 1",
    "if",
    "\0",
    "# -*- coding: none -*-",
    "(" * 500,
    "x = " + "-" * 20_000 + "1",
]


@several
def test_a_users_criterion_is_read_or_refused(tmp_path, cases):
    path = tmp_path / "mine.py"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try_all(
            lambda: criterion_file_fingerprint(str(path), "Mine"),
            lambda: make_criterion("mine", 0.5, {"mine": load_criterion(str(path), "Mine")}),
        )

    programs = st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=4).map(
        lambda lines: "\n".join(lines).encode()
    )
    assert_read_or_refused(programs | programs.flatmap(bent) | st.binary(max_size=20), read, cases)


@several
@pytest.mark.parametrize("name", ["huginn", "ouro"])
def test_a_published_folder_is_read_or_refused(tmp_path, name, cases):
    source, folder = published.write_folder(name, tmp_path / "source"), tmp_path / "folder"
    files = {path.name: path.read_bytes() for path in source.iterdir()}

    def read(case: tuple[str, bytes]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file, content in (files | dict([case])).items():
            (folder / file).write_bytes(content)
        opened = PublishedFolder(folder)
        try_all(
            lambda: opened.defaults,
            lambda: open_published(folder, opened.model_config(context_length=8), torch.float32, "cpu"),
            lambda: load_published(folder / "tokenizer.json").encode_document("abc"),
        )

    def other(file: str) -> st.SearchStrategy[tuple[str, bytes]]:
        good = files[file]
        contents = json_bytes(json.loads(good)) if file.endswith(".json") else bent(good) | st.binary(max_size=40)
        return st.tuples(st.just(file), contents)

    named = [other(file) for file in sorted(files) if file.endswith((".json", ".safetensors"))]
    assert_read_or_refused(st.one_of(*named), read, cases)
