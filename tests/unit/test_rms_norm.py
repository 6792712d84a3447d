"""RMSNorm: the numbers and gradients of torch.nn.RMSNorm with less memory for the backward pass."""

import pytest
import torch

from tests.small import saved_bytes
from twoscale.model.kernels import RMSNorm

EPSILON = 1e-6


def modules(size: int, dtype: torch.dtype = torch.float64) -> tuple[RMSNorm, torch.nn.RMSNorm]:
    """Both with the same weights, none of them one."""
    ours, torchs = (
        RMSNorm(size, EPSILON).to(dtype),
        torch.nn.RMSNorm(size, eps=EPSILON, dtype=dtype),
    )
    for module in (ours, torchs):
        with torch.no_grad():
            module.weight.copy_(torch.linspace(0.5, 2, size))
    return ours, torchs


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    ).requires_grad_()


@pytest.mark.parametrize("shape", [(5,), (1, 8), (2, 3, 16)])
def test_result_and_gradients_are_those_of_torch(shape):
    ours, torchs = modules(shape[-1])
    results = []
    for module in (ours, torchs):
        x = rows(*shape)
        y = module(x)
        (y * torch.arange(y.numel()).view_as(y)).sum().backward()
        results.append((y, x.grad, module.weight.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_gradient_the_numbers_are_the_same_for_many_few_and_single_rows(dtype):
    ours, torchs = modules(8, dtype)
    x = rows(4, 8).detach().to(dtype) * torch.tensor(
        [[1.0], [1e-3], [0.0], [1e3]], dtype=dtype
    )  # epsilon counts
    with torch.inference_mode():
        for found in (
            ours(x),
            ours.forward_rows(x),
            torch.stack([ours.forward_row(row) for row in x]),
        ):
            torch.testing.assert_close(found, torchs(x))


def test_backward_pass_keeps_one_number_a_row_beside_its_input():
    ours, torchs = modules(64)
    x = rows(32, 64)
    kept, expected = (
        saved_bytes(module, lambda module=module: module(x)) for module in (ours, torchs)
    )
    assert kept == 8 * (x.numel() + 32) < expected
