"""What all unit tests share."""

import pytest
import torch

from tests.texts import CORPUS
from twoscale.data.tokenizer import train_bpe

torch.set_num_threads(1)  # the models are too small to share, and bits depend on the number


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """File of a tokenizer of 300 ids."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(train_bpe(CORPUS, 300), encoding="utf-8")
    return path
