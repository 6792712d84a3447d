"""bare_products: the same matrix products as one decoded token, counted by torch."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.products import bare_products
from tests.small import model_config
from twoscale.model.flops import layer_matrices
from twoscale.model.transformer import initialise

PARCAE = {
    "injection": "diagonal",
    "exit_projection": True,
    "looped_kv_heads": 1,
    "looped_mlp_size": 20,
}


@pytest.mark.parametrize(
    ("model", "loops", "squares"),  # of the size of a state, besides layers and head
    [
        ({"groups": []}, [], 0),
        ({"groups": [[2], [3, 4]]}, [5, 2], 2 + 7),
        ({"groups": [[2, 3]]} | PARCAE, [5], 2),
    ],
)
def test_one_token_costs_the_flops_of_its_matrices(model, loops, squares):
    config = model_config(num_layers=4, **model)
    with FlopCounterMode(display=False) as counter:
        bare_products(initialise(config, 0), loops)()
    times = {
        number: count for group, count in zip(config.groups, loops, strict=True) for number in group
    }
    layers = sum(times.get(number, 1) * layer_matrices(config, number) for number in range(1, 5))
    size = config.hidden_size
    assert counter.get_total_flops() == 2 * (
        layers + squares * size**2 + size * config.padded_vocab_size
    )
