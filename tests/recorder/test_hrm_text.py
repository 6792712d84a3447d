"""The recorder on HRM-Text of the transformers package: two modules at two speeds, random
weights.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from twoscale import tables
from twoscale.recorder.recorded import table_path
from twoscale.recorder.recorder import Input, Loop, Output, Recorder
from twoscale.recorder.run import draw_run

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: make test-tools SUITE=recorder"
)
if not hasattr(transformers, "HrmTextConfig"):
    pytest.skip("needs transformers >= 5.9, which has HRM-Text", allow_module_level=True)

HIGH, LOW = 4, 3  # cycles: HIGH steps of the slow module, HIGH * LOW of the fast one
TOKENS = torch.randint(64, (3, 10), generator=torch.Generator().manual_seed(0))


def model(cycles: int = HIGH):
    """HRM-Text in float64 whose weights do not depend on its number of cycles."""
    config = transformers.HrmTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
        max_position_embeddings=32, initializer_range=0.2, H_cycles=cycles, L_cycles=LOW,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.HrmTextForCausalLM(config).double().eval().requires_grad_(False)


def loops(hrm) -> dict[str, Loop]:
    """State and input are added before each call, so x^0 is not what enters the modules."""

    def low_start(hidden_states: Tensor, **_) -> Tensor:
        return hrm.model.z_L_init.expand_as(hidden_states)

    def high_start(embedded: Tensor) -> Tensor:
        return embedded * hrm.model.embedding_scale

    return {
        "low": Loop("model.L_module", Input("model.L_module", low_start)),
        "high": Loop("model.H_module", Output("model.embed_tokens", high_start)),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    hrm, folder = model(), tmp_path_factory.mktemp("hrm")
    with Recorder(hrm, loops(hrm), folder, iteration=0, decode=hrm.lm_head):
        for rows in (slice(0, 2), slice(2, 3)):
            hrm(input_ids=TOKENS[rows])
    return folder


def read(folder, table: str) -> pd.DataFrame:
    return tables.read(table, table_path(folder, table, 0))


def test_each_module_has_its_own_number_of_loop_steps_for_every_token(folder):
    rows = read(folder, "trajectories")
    assert rows.groupby("group")["k"].max().to_dict() == {"high": HIGH, "low": HIGH * LOW}
    assert len(rows) == TOKENS.numel() * (HIGH + 1 + HIGH * LOW + 1)
    assert read(folder, "token_drift").empty  # the modules run in turns


@pytest.mark.parametrize("cycles", range(1, HIGH + 1))
def test_the_slow_state_after_k_steps_and_its_loss_are_those_of_a_model_of_k_cycles(folder, cycles):
    hrm, other = model(), model(cycles)
    assert all(torch.equal(a, b) for a, b in zip(hrm.parameters(), other.parameters(), strict=True))
    output = other(input_ids=TOKENS, labels=TOKENS)
    rows = read(folder, "trajectories").query("group == 'high' and k == @cycles")
    last = other.model(input_ids=TOKENS).last_hidden_state
    np.testing.assert_allclose(rows["state_norm"], last.norm(dim=-1).flatten(), rtol=1e-6)
    quality = read(folder, "scaling_quality").query("loops == @cycles")
    assert np.average(quality["ce"], weights=quality["tokens"]) == pytest.approx(
        output.loss.item(), rel=1e-6
    )


def test_its_figures_and_claims_are_drawn(folder):
    names = [path.name for path in draw_run(folder, text="random ids")]
    assert names == [
        "fig1.pdf",
        "fig3.pdf",
        "fig5.pdf",
        "scaling.pdf",
        "path_types.pdf",
        "claims.md",
    ]
