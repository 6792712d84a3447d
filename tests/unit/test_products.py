"""bare_products: the same matrix products as one decoded token, counted by torch."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.products import bare_products
from tests.small import model_config
from twoscale.model.flops import layer_matrices
from twoscale.model.transformer import initialise


@pytest.mark.parametrize("groups", [[], [[2], [3, 4]]])
def test_one_token_costs_the_flops_of_its_matrices(groups):
    config = model_config(groups=groups, num_layers=4)
    loops = [5, 2][: len(groups)]
    with FlopCounterMode(display=False) as counter:
        bare_products(initialise(config, 0), loops)()
    size, looped = config.hidden_size, sum(map(len, groups))
    layers = config.num_layers - looped + sum(n * len(group) for n, group in zip(loops, groups, strict=True))
    adapters = len(groups) + sum(loops)
    expected = 24 * size**2 * layers + 2 * size**2 * adapters + 2 * size * config.padded_vocab_size
    assert counter.get_total_flops() == expected


def test_a_token_of_parcae_enters_and_leaves_its_core_once():
    core = {"groups": [[2, 3]], "injection": "diagonal", "exit_projection": True}
    config = model_config(**core, looped_kv_heads=1, looped_mlp_size=20)
    with FlopCounterMode(display=False) as counter:
        bare_products(initialise(config, 0), [5])()
    layers = sum(layer_matrices(config, number) * (5 if number in (2, 3) else 1) for number in (1, 2, 3, 4))
    size = config.hidden_size
    assert counter.get_total_flops() == 2 * (layers + 2 * size**2 + size * config.padded_vocab_size)
