"""What all unit tests share."""

from typing import Any

import pytest
import torch

from tests import small

torch.set_num_threads(1)  # the models are too small to share, and bits depend on the number


@pytest.fixture
def paper() -> dict[str, Any]:
    """The whole configuration of the paper, to be changed by the test."""
    return small.preset("paper")
