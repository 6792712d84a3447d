"""linear: the numbers of torch.nn.functional.linear, whatever kernel computes them."""

import copy
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from twoscale.model import kernels
from twoscale.model.kernels import MIN_MULTIPLICATIONS, MULTIPLE, Linear, linear, lowered_weights
from twoscale.model.layers import Adapter

BATCH = (4, MULTIPLE)  # sequences and tokens
IN, OUT = 320, 448  # many enough for oneDNN


@pytest.fixture(autouse=True, params=[True, False], ids=["oneDNN", "MKL"])
def uses_onednn(request, monkeypatch) -> bool:
    """Both choices on any processor."""
    uses = request.param and torch.backends.mkldnn.is_available()
    monkeypatch.setattr(kernels, "USES_ONEDNN", uses)
    return uses


def tensor(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).requires_grad_()


def used_onednn(call) -> bool:
    with torch.profiler.profile() as profile:
        call()
    return any(event.key == "mkldnn::_linear_pointwise" for event in profile.key_averages())


def test_whole_batches_use_onednn_where_it_is_chosen(uses_onednn):
    x, weight = tensor(*BATCH, IN), tensor(OUT, IN)
    assert x.numel() * OUT >= MIN_MULTIPLICATIONS
    assert used_onednn(lambda: linear(x, weight)) == uses_onednn
    assert not used_onednn(
        lambda: linear(x[:, 1:], weight)
    )  # a number of rows that may not come again
    assert not used_onednn(lambda: linear(x[:1, :2], weight))
    assert not used_onednn(lambda: linear(x.double(), weight.double()))


@pytest.mark.parametrize("shapes", [(IN, OUT), (OUT, IN)], ids=["wider", "narrower"])
def test_result_and_gradients_are_those_of_torch(shapes):
    x, weight = tensor(*BATCH, shapes[0]), tensor(shapes[1], shapes[0])
    gradient = tensor(*BATCH, shapes[1]).detach()
    ours, theirs = linear(x, weight), F.linear(x, weight)
    torch.testing.assert_close(ours, theirs)
    expected = torch.autograd.grad(theirs, (x, weight), gradient)
    for found, right in zip(
        torch.autograd.grad(ours, (x, weight), gradient), expected, strict=True
    ):
        torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-4)
        assert found.stride() == right.stride()


@pytest.mark.parametrize(
    "views",
    [
        lambda x, weight: (x, torch.cat([weight, weight], dim=1)[:, IN:]),
        lambda x, weight: (x.transpose(0, 1), weight),
        lambda x, weight: (x, weight.T.contiguous().T),
        lambda x, weight: (x[..., :1].expand_as(x), weight),
    ],
    ids=["half of a weight", "transposed batch", "transposed weight", "expanded"],
)
def test_operands_may_be_views(views):
    x, weight = views(tensor(*BATCH, IN), tensor(OUT, IN))
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


def drawn(layer: Linear) -> Linear:
    """The layer with weights; it has no initial values of its own."""
    with torch.no_grad():
        layer.weight.copy_(tensor(*layer.weight.shape))
    return layer


def test_only_the_gradients_asked_for_are_computed():
    x, layer = tensor(*BATCH, IN), drawn(Linear(IN, OUT))
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand_as(x))
    assert layer.weight.grad is None


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_a_layer_prepared_for_few_rows_gives_the_product_of_torch_for_any_number_of_rows(rows):
    module = drawn(Linear(IN, OUT))
    prepared = copy.copy(module)
    prepared.prepare()
    for shape in ([rows], [rows, 2]):  # also of the heads of a user's layer
        x, residual = tensor(*shape, IN).detach(), tensor(*shape, OUT).detach()
        expected = F.linear(x, module.weight)
        torch.testing.assert_close(module.added(residual, x), residual + expected)
        with torch.inference_mode():
            torch.testing.assert_close(prepared.forward(x), expected)
            torch.testing.assert_close(prepared.added(residual, x), residual + expected)


def loop_gradient(layer: Linear, inputs: list[float]) -> float:
    """Gradient of the one weight of a layer that is applied to each of the inputs, under autocast:
    their sum.
    """
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [layer.forward(torch.full((1, 1), x)) for x in inputs]
    torch.cat(outputs).sum().backward()
    return layer.weight.grad.item()


def test_gradients_of_a_looped_layer_with_a_lowered_weight_are_summed_in_float32():
    layer, inputs = (
        drawn(Linear(1, 1)),
        256 * [2.0**-9] + [1.0],
    )  # the last one comes first in the backward pass
    with lowered_weights([layer], torch.bfloat16):
        assert loop_gradient(layer, inputs) == sum(inputs) == 1.5
    assert loop_gradient(layer, inputs) != 1.5  # autocast sums in bfloat16


def test_lowered_weights_are_those_of_now_and_are_gone_after_an_error():
    layer = drawn(Adapter(4))
    for _ in range(2):
        with suppress(KeyError), lowered_weights([torch.nn.Sequential(layer)], torch.bfloat16):
            assert torch.equal(layer.used_weight(), layer.weight.bfloat16())
            for half in (layer.of_state, layer.of_input):  # both of an adapter
                assert half(torch.ones(1, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16
            raise KeyError
        assert layer.used_weight() is layer.weight
        with torch.no_grad():
            layer.weight.add_(1)
