"""bare_products: the same matrix products as one decoded token, counted by torch."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.small import model_config
from twoscale.exits.products import bare_products
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
