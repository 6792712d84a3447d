"""measures: paths whose geometry is known in closed form."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from tests.small import held_out
from twoscale import tables
from twoscale.config import PathTypesConfig
from twoscale.dynamics import measures, trajectories, vectors
from twoscale.dynamics.states import token_keys


def one_step(state: Tensor, update: Tensor, previous: Tensor) -> dict[str, Tensor]:
    """The measures of a step with the update before it."""
    step = measures.LoopStep(state, update, previous, vectors.norm(previous), torch.tensor(0.0))
    return measures.measure_step(step)


def contraction(ratio: float, count: int = 8) -> Tensor:
    """Points (count + 1, 3) whose updates keep their direction and shrink by `ratio`."""
    limit, offset = torch.tensor([[9.0, 9.0, 9.0], [1.0, -2.0, 2.0]], dtype=torch.float64)
    return limit + offset * ratio ** torch.arange(count + 1, dtype=torch.float64)[:, None]


def test_the_normalized_acceleration_of_steps_far_below_one_is_that_of_their_ratio():
    """Steps down to 1e-12 of states of norm 1e-6, where an ε of 1e-8 would decide the ratio."""
    found = measured_path(1e-6 * contraction(0.25, count=10))["acceleration_normalized"]
    assert found[1:-1].tolist() == pytest.approx([0.6] * 9, rel=1e-3)


def test_ratios_of_steps_as_short_as_the_smallest_number_are_finite_and_not_negative():
    tiny = torch.tensor(torch.finfo(torch.float32).tiny)
    zero, short = torch.zeros(()), tiny / torch.finfo(torch.float32).eps
    assert vectors.over_both(tiny, tiny, zero).item() == 0.5
    assert vectors.over_norm(tiny, zero).item() == pytest.approx(1)
    assert vectors.over_norm(short, zero).item() == pytest.approx(
        0.5 / torch.finfo(torch.float32).eps
    )
    for ratio in (vectors.over_both(zero, zero, zero), vectors.over_norm(zero, zero)):
        assert ratio == 0
        assert not ratio.signbit()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("units", "defined"), [(8, False), (16, False), (17, True)])
def test_a_comparison_with_a_step_under_the_rounding_floor_is_undefined(dtype, units, defined):
    state = torch.tensor([10.0, 0.0], dtype=dtype)
    long, short = (
        torch.tensor([0.0, length], dtype=dtype)
        for length in (1.0, units * 10 * torch.finfo(dtype).eps)
    )
    for row in (one_step(state, short, long), one_step(state, long, short)):
        for name in ("cosine", "acceleration", "acceleration_normalized", "acceleration_relative"):
            assert row[name].isfinite().item() is defined
        assert row["step_norm"].isfinite()


def measured_path(path: Tensor) -> dict[str, Tensor]:
    """All measures of a path (K + 1, C), by name (K + 1,)."""
    return measures.measure_steps(list(path), vectors.norm(path - path[-1]))


def test_a_state_of_norm_zero_has_no_direction():
    found = measured_path(
        torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    )
    assert found["direction_step_norm"].isnan().tolist() == [True, False, False, True]
    assert found["direction_cosine"].isnan().tolist() == [True, True, False, True]


def test_the_effective_dimension_is_that_of_the_spectrum_of_the_covariance():
    paths = torch.randn(4, 31, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    eigenvalues = torch.stack([torch.linalg.eigvalsh(path.T.cov()) for path in paths])
    wanted = eigenvalues.sum(-1) ** 2 / eigenvalues.square().sum(-1)
    torch.testing.assert_close(measures.effective_dimension(measures.path_distances(paths)), wanted)


def test_path_distances_hold_the_steps_and_the_way_to_the_end_also_far_from_the_origin():
    path = 1e6 + contraction(0.5)
    distances = measures.path_distances(path)
    torch.testing.assert_close(distances.diagonal(1), vectors.norm(path.diff(dim=0)))
    torch.testing.assert_close(distances[:, -1], vectors.norm(path - path[-1]))


@pytest.mark.parametrize("steps", [0, 1])
def test_fewer_than_two_steps_have_no_contraction_rate(steps):
    assert measures.contraction_rate(torch.ones(5), torch.arange(5) < steps).isnan()


def test_the_contraction_rate_is_the_fit_of_least_squares_for_each_token():
    steps = torch.rand(3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    above_floor = steps > 0.2
    for row, above, rate in zip(
        steps, above_floor, measures.contraction_rate(steps, above_floor), strict=True
    ):
        k = torch.arange(12, dtype=torch.float64)[above]
        design = torch.stack([k, torch.ones_like(k)], dim=1)
        slope = torch.linalg.lstsq(design, row[above].log()[:, None]).solution[0, 0]
        torch.testing.assert_close(rate, slope.exp())


def test_the_kl_divergence_is_that_of_the_definition_whatever_the_rows_at_a_time(monkeypatch):
    logits = torch.randn(2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    log_p, log_q = logits.log_softmax(-1)
    wanted = (log_p.exp() * (log_p - log_q)).sum(-1)
    for numbers in (2**18, 10, 1):
        monkeypatch.setattr(vectors, "CACHED_NUMBERS", numbers)
        torch.testing.assert_close(vectors.kl_divergence(log_p, log_q), wanted)
    assert vectors.kl_divergence(log_p, log_p).abs().max() < 1e-15


@pytest.fixture
def further_measures(monkeypatch):
    """One more measure of each registry, as a user registers it."""
    for registry in ("LOOP_MEASURES", "PATH_MEASURES"):
        monkeypatch.setattr(measures, registry, dict(getattr(measures, registry)))
    measures.loop_measure("turn", unit="rad", needs_previous=True)(
        lambda step: torch.full_like(step.step_norm, 0.25)
    )
    measures.path_measure("length", unit="state")(lambda path: path.step_norms.sum(-1))


def write_tables(folder) -> dict[str, Path]:
    """The tables "trajectories" and "token_paths" of 2 x 3 random paths of 5 states."""
    states = list(torch.randn(5, 2, 3, 8, generator=torch.Generator().manual_seed(0)))
    rows, path = trajectories.measure_group(states, PathTypesConfig(window=3, max_period=2))
    keys = token_keys(20, held_out(torch.zeros(2, 3)))
    columns = {
        "trajectories": trajectories.loop_columns(keys, "4", rows),
        "token_paths": trajectories.path_columns(keys, "4", path),
    }
    paths = {table: folder / f"{table}.parquet" for table in columns}
    for table, path in paths.items():
        with tables.writing(table, path, trajectories.measured_units()[table]) as append:
            append(columns[table])
    return paths


@pytest.mark.parametrize(
    ("table", "registry"), [("trajectories", "LOOP_MEASURES"), ("token_paths", "PATH_MEASURES")]
)
@pytest.mark.parametrize("further", [False, True])
def test_every_registered_measure_has_a_column_and_a_unit(
    table, registry, further, request, tmp_path
):
    if further:
        request.getfixturevalue("further_measures")
    registered = getattr(measures, registry)
    assert ("turn" in registered or "length" in registered) is further
    path = write_tables(tmp_path)[table]
    schema = pq.read_schema(path)
    assert schema.names == [*tables.columns(table), *registered]
    for name, measure in registered.items():
        assert measure.name == name
        assert measure.unit in ("state", "1", "rad")
        assert schema.field(name).metadata[b"unit"].decode() == measure.unit


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="cosine"):
        measures.loop_measure("cosine", unit="1")(len)
    with pytest.raises(ValueError, match="straightness"):
        measures.path_measure("straightness", unit="1")(len)


def test_steps_of_direction_have_the_rounding_floor_of_the_dtype_of_the_states():
    turn = torch.tensor([[1.0, 0.0], [1.0, 0.05], [1.0, 0.1]], dtype=torch.float32)
    exact, rounded = (
        measures.measure_steps(list(turn), vectors.norm(turn - turn[-1]), dtype)
        for dtype in (None, torch.bfloat16)
    )
    assert exact["direction_cosine"][1].isfinite()
    assert rounded["direction_cosine"].isnan().all()
