"""Recipes for the spectral radius on maps of known radius, and the page of the measured table."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from tests.published import GOLDEN
from tests.studies.spectrum.jacobians import recipes
from tests.studies.spectrum.jacobians.maps import NORM, Map, known_maps
from tests.studies.spectrum.jacobians.page import PAGE, RADII, page
from tests.studies.spectrum.jacobians.zoo import Sudoku, zoo_maps
from twoscale.model.linear import Linear

MAPS = {of.name: of for of in known_maps()}


@pytest.fixture(params=MAPS)
def of(request):
    return MAPS[request.param]


def by_power(of, product, precision):
    return recipes.power_iteration(product, of, precision)


def test_the_radius_in_closed_form_is_that_of_the_dense_jacobian(of):
    dense = torch.func.jacrev(of.step)(of.state).squeeze()
    assert torch.linalg.eigvals(dense).abs().max().item() == pytest.approx(of.radius, abs=1e-4)
    assert of.state.norm().item() == pytest.approx(NORM)


def test_exact_products_and_arnoldi_find_every_radius(of):
    radius, residual = recipes.arnoldi_radius(recipes.exact_product(of, "float64"), of, "float64")
    assert radius == pytest.approx(of.radius, abs=1e-4)
    assert residual < 1e-7


def test_a_difference_in_float64_is_the_exact_product(of):
    vector = torch.randn(of.state.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    difference = recipes.forward_difference(of, "float64", 1e-4)(vector)
    assert torch.allclose(difference, recipes.exact_product(of, "float64")(vector), atol=1e-5)


def test_forward_differences_in_tf32_measure_rounding_at_small_epsilon():
    of = MAPS["linear, radius 0.9"]
    tf32 = by_power(of, recipes.forward_difference(of, recipes.TF32, 1e-2), recipes.TF32)[-1]
    single = by_power(of, recipes.forward_difference(of, "float32", 1e-2), "float32")[-1]
    assert single == pytest.approx(0.9, abs=0.01)
    assert tf32 > 1.2  # a contraction that looks unstable


def test_power_iteration_does_not_converge_on_a_complex_pair():
    of = MAPS["rotation"]
    last = by_power(of, recipes.exact_product(of, "float64"), "float64")[-20:]
    assert max(last) > 1.5
    assert min(last) < 0.7


def test_rounding_to_tf32_keeps_ten_bits_to_nearest():
    ulp = 2.0**-10
    given = torch.tensor([1 + 0.49 * ulp, 1 + 0.5 * ulp, -1 - 0.6 * ulp, 1 + ulp, 0.0, 3 * (1 + 0.2 * ulp)])
    expected = torch.tensor([1, 1 + ulp, -1 - ulp, 1 + ulp, 0.0, 3])
    assert recipes.to_tf32(given).equal(expected)


@pytest.mark.parametrize("product", ["linear", "matrices", "batched", "attention"])
def test_every_product_of_matrices_is_rounded(product):
    a, b = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)), torch.full((8, 8), 1 + 2.0**-13)
    functions = {
        "linear": lambda a, b: torch.nn.functional.linear(a, b, torch.zeros(8)),
        "matrices": lambda a, b: a[0] @ b,
        "batched": lambda a, b: a @ b.expand(2, 8, 8),
        "attention": lambda a, b: torch.nn.functional.scaled_dot_product_attention(a, a, a @ b),
    }
    function = functions[product]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with recipes.TF32Products():
            rounded = function(a, b)
        inputs = recipes.to_tf32(a), recipes.to_tf32(b)
        assert not rounded.equal(function(a, b))
        if product != "attention":  # its second product has rounded weights
            assert rounded.equal(function(*inputs))


@pytest.mark.parametrize("precision", ["float32", recipes.TF32])
def test_layers_of_the_library_are_plain_products(precision):
    """Of a size at which they would be fused layers of oneDNN."""
    layer = Linear(256, 256).double()
    of = Map("layer", layer, torch.randn(1, 64, 256, dtype=torch.float64))
    vector = torch.randn(1, 64, 256)
    with torch.no_grad(), recipes.plain_products(precision):
        if precision == "float32":
            found, expected = recipes.exact_product(of, precision)(vector), vector @ layer.weight.float().T
        else:
            found = recipes.forward_difference(of, precision, 1.0)(vector)
            rounded, weight = map(recipes.to_tf32, (of.state.float() + vector, layer.weight.float()))
            expected = rounded @ weight.T - recipes.to_tf32(of.state.float()) @ weight.T
    assert torch.allclose(found, expected, atol=2e-5)


def test_the_maps_of_trained_loops_are_read_from_their_files(tmp_path):
    """Random weights in the published layout, and a small published model; each map applies to its state."""
    torch.save(Sudoku().state_dict(), tmp_path / "sudoku.pt")
    shutil.copytree(GOLDEN / "parcae", tmp_path / "parcae")
    found = list(zoo_maps(tmp_path))
    loops = [*(("sudoku", k) for k in (16, 32, 64, 128)), *(("parcae", k) for k in (5, 16))]
    assert [(of.name, of.loops) for of in found] == loops
    for of in found:
        assert of.step(of.state).shape == of.state.shape
        assert of.state.isfinite().all()


def test_the_page_is_that_of_the_measured_table():
    """After an edit: python -m tests.studies.spectrum.jacobians --maps."""
    assert PAGE.read_text(encoding="utf-8") == page(pd.read_parquet(RADII))


def test_the_rows_of_known_radius_are_those_that_the_recipes_give():
    measured = pd.read_parquet(RADII)
    of = MAPS["linear, radius 1.1"]
    rows = measured[(measured["map"] == of.name) & (measured["precision"] == "float64")]
    again = pd.DataFrame(recipes.measure(of))
    again = again[again["precision"] == "float64"]
    assert again["radius"].to_numpy() == pytest.approx(rows["radius"].to_numpy(), rel=1e-6)
    assert np.isfinite(again["radius"]).all()
