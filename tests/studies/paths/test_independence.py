"""Path independence: what other noise changes, group by group, against passes computed by hand; and
the figure.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch

from tests.held_out import CHECKPOINT, CHOSEN, assert_numbered
from tests.small import checkpoint, held_out, model_config
from twoscale import tables
from twoscale.model.checkpoints import LoadedCheckpoint
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import LoopedTransformer, initialise
from twoscale.studies.paths import measure

SEED, ITERATION, LOOPS = 5, 200, 4
TOKENS = torch.randint(37, (3, 8), generator=torch.Generator().manual_seed(0))
KEYS = ["group", "draw", "sequence", "position"]


def float64_model(**changes) -> LoopedTransformer:
    return initialise(model_config(**changes), seed=3).double().requires_grad_(False)


def loaded(model: LoopedTransformer) -> LoadedCheckpoint:
    return checkpoint(model, SEED, ITERATION)


def measured(model: LoopedTransformer, draws: int = 2) -> pd.DataFrame:
    batches = measure.measure_batch(loaded(model), held_out(TOKENS[:2]), LOOPS, draws)
    return pd.concat([pd.DataFrame(columns) for columns in batches])


def test_there_is_one_row_for_every_token_group_and_draw():
    frame = measured(float64_model())
    assert len(frame) == len(frame.drop_duplicates(KEYS)) == 3 * 2 * 2 * 8
    assert frame["group"].unique().tolist() == ["2", "3", "all"]
    assert sorted(frame["draw"].unique()) == [1, 2]
    assert set(frame["iteration"]) == {ITERATION}
    assert measured(float64_model(groups=[[2, 3]]))["group"].unique().tolist() == [
        "2-3"
    ]  # not again as "all"
    assert (
        list(
            measure.measure_batch(loaded(float64_model(groups=[])), held_out(TOKENS[:1]), LOOPS, 1)
        )
        == []
    )


def test_all_groups_varied_is_a_pass_under_the_noise_of_another_seed():
    model = float64_model()
    passes = [
        measure.final_states(model, TOKENS[:2], LOOPS, EvaluationNoise(SEED + n, [0, 1], 8))
        for n in (0, 1)
    ]
    (states, log_p), (others, log_q) = passes
    rows = measured(model).query("group == 'all' and draw == 1")
    difference = (others[-1] - states[-1]).norm(dim=-1).flatten()
    np.testing.assert_allclose(rows["distance"], difference, rtol=1e-5)
    np.testing.assert_allclose(
        rows["distance_relative"], difference / states[-1].norm(dim=-1).flatten(), rtol=1e-5
    )
    np.testing.assert_allclose(
        rows["kl"], (log_p.exp() * (log_p - log_q)).sum(-1).flatten(), rtol=1e-4
    )
    assert rows["agreement"].tolist() == (log_p.argmax(-1) == log_q.argmax(-1)).flatten().tolist()


def test_a_loop_that_forgets_its_start_is_path_independent_and_one_that_keeps_it_is_not():
    forgetful, keeping = float64_model(), float64_model(sandwich="branch")
    for model in (forgetful, keeping):
        for group in model.groups:
            group.adapter.weight[:, :8] = 0 if model is forgetful else 2 * torch.eye(8)
    forgotten, kept = measured(forgetful), measured(keeping)
    assert forgotten["distance"].max() == 0
    assert forgotten["kl"].max() < 1e-12
    assert forgotten["agreement"].min() == 1
    assert kept["distance_relative"].median() > 0.1
    assert kept["kl"].max() > 1e-3
    assert measured(float64_model(state_init="input"))["distance"].max() == 0  # nothing to vary


def written(loaded_checkpoint, text, path, batch_size=2, draws=1):
    """The table of a job."""
    settings = SimpleNamespace(dtype="float64", batch_size=batch_size, loops=LOOPS)
    config = SimpleNamespace(
        trajectories=settings, path_independence=SimpleNamespace(draws=draws), sequences=3
    )
    job = SimpleNamespace(
        config=config,
        checkpoint=lambda _: loaded_checkpoint,
        held_out=lambda _: text,
        file=lambda _: path,
    )
    measure.run(job)
    return tables.read("token_independence", path)


def test_the_table_does_not_depend_on_the_sequences_at_a_time(tmp_path):
    frames = [
        written(
            loaded(float64_model()), held_out(TOKENS), tmp_path / "table.parquet", size
        ).sort_values(KEYS, ignore_index=True)
        for size in (1, 2)
    ]
    pd.testing.assert_frame_equal(*frames, rtol=1e-5, atol=1e-12)
    assert_numbered(written(CHECKPOINT, CHOSEN, tmp_path / "table.parquet"))
