"""Results in a bucket, through Snakemake's storage plugin for S3, on a server of this machine."""

import os

import pytest

from tests.workflow.conftest import finished, fresh  # noqa: F401 - two fixtures

pytest.importorskip("snakemake_storage_plugin_s3", reason="needs snakemake-storage-plugin-s3: make test-packaging")
moto = pytest.importorskip("moto.server", reason="needs moto: make test-packaging")
boto3 = pytest.importorskip("boto3")

STORAGE = ("--default-storage-provider", "s3", "--default-storage-prefix", "s3://looped/project")
FIGURE = "results/fig1.pdf"
CHECKPOINTS = "results/tiny/checkpoints"


@pytest.fixture
def bucket(monkeypatch):
    """An empty bucket, which the variables of Snakemake's plugin lead to."""
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        for name, value in {"ENDPOINT_URL": address, "ACCESS_KEY": "any", "SECRET_KEY": "any"}.items():
            monkeypatch.setenv(f"SNAKEMAKE_STORAGE_S3_{name}", value)
        keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}
        yield boto3.resource("s3", endpoint_url=address, **keys).create_bucket(Bucket="looped")
    finally:
        server.stop()


def test_a_bucket_gets_the_bytes_of_a_run_without_storage(fresh, finished, bucket):  # noqa: F811
    done = fresh.succeed(*STORAGE, FIGURE)
    assert "Exception" not in done.stderr
    stored = {entry.key.removeprefix("project/"): entry for entry in bucket.objects.all()}
    checkpoints = sorted(path.name for path in (finished.root / CHECKPOINTS).iterdir())
    assert "iteration_000020.optimizer.safetensors" in checkpoints
    # as without storage, no optimizer state between two segments
    assert sorted(name.rpartition("/")[2] for name in stored if name.startswith(CHECKPOINTS)) == checkpoints
    for name in (FIGURE, *(f"{CHECKPOINTS}/{file}" for file in checkpoints)):
        assert stored[name].get()["Body"].read() == (finished.root / name).read_bytes(), name
    assert not (fresh.root / FIGURE).exists()

    assert fresh.plan(*STORAGE, FIGURE) == {}
    fresh.configure(figures={"fig1_tokens": 2})
    assert fresh.plan(*STORAGE, FIGURE) == {"plot_fig1": 1}
