"""train.shard: a model divided over two processes has the losses and gradients of a whole one, and
takes half of it.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.testing import CompileCounter

from tests.divided_gradients import VARIANTS
from tests.segment import TIMEOUT
from tests.small import ROOT, model_config
from twoscale.model.noise import training_noise
from twoscale.model.transformer import initialise
from twoscale.training.processes import reshard, shard_model
from twoscale.training.state import compile_blocks

SCRIPT = str(ROOT / "tests" / "divided_gradients.py")


def test_a_divided_model_has_the_losses_and_the_gradient_of_a_whole_one_and_keeps_half_of_its_weights():
    launch = [str(ROOT / "scripts" / "with_nodes.py"), "1", "2", "1", "0", SCRIPT]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *launch],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == VARIANTS.keys()
    for variant, shares in found.items():
        rounding = 2e-2 if variant == "bfloat16" else 1e-5
        assert max(shares[name] for name in ("loss", "held out", "norm", "gradient")) < rounding, (
            variant,
            shares,
        )
        assert shares["kept"] == pytest.approx(0.5, abs=0.01), variant
    assert "Warning" not in done.stderr, done.stderr


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()
    dist.destroy_process_group()


def norm_of(model, loops, divided=False) -> float:
    """Norm of the gradient of one batch."""
    tokens = torch.arange(16).reshape(2, 8)
    model.zero_grad()
    hidden = model.hidden_states(
        tokens, [loops] * len(model.config.groups), training_noise(1, 0, 0)
    )
    model.loss(hidden, tokens).backward()
    if divided:
        reshard(model)
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    return (norm.full_tensor() if divided else norm).item()


@pytest.mark.runs
@pytest.mark.usefixtures("group")
def test_the_blocks_of_a_divided_model_are_compiled_once_whatever_the_loop_counts():
    counter = CompileCounter()
    whole, divided = (initialise(model_config(hidden_size=16), 11) for _ in range(2))
    compile_blocks(divided, sharded=True, backend=counter)
    shard_model(divided, "cpu")
    graphs = []
    for loops in (4, 1, 2, 7):
        assert norm_of(divided, loops, divided=True) == pytest.approx(
            norm_of(whole, loops), rel=1e-5
        )
        graphs.append(counter.frame_count)
    assert (
        3 <= graphs[1] == graphs[-1] <= 3 * len(divided.config.groups) + 2
    )  # groups and unlooped layers
