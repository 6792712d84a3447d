"""train.shard: a model divided over two processes has the losses and gradients of a whole one, and takes half of it."""

import json
import os
import subprocess
import sys

import pytest

from tests.divided_gradients import VARIANTS
from tests.segment import TIMEOUT
from tests.small import ROOT

pytestmark = pytest.mark.runs

LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.divided_gradients"]


@pytest.fixture(scope="module")
def comparisons():
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *LAUNCH], env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_divided_model_has_the_losses_and_the_gradient_of_a_whole_one(variant, comparisons):
    found = comparisons[variant]
    rounding = 1e-2 if variant == "bfloat16" else 1e-5
    assert max(found[name] for name in ("loss", "held out", "norm", "gradient")) < rounding, found


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_process_keeps_half_of_the_weights(variant, comparisons):
    assert comparisons[variant]["kept"] == pytest.approx(0.5, abs=0.01)
