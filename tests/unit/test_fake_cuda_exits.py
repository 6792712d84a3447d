"""Exit engines on CUDA tensors without values: one device, no hidden waits, and how many kernels a token takes."""

from collections import Counter

import pytest
import torch

from tests.fake_cuda import Seen, default_value, fake_cuda
from tests.gpu_kernels import gpu, kernels, model_on, of_compiled_step, of_step
from twoscale.exits.criteria import CRITERIA, make_criterion
from twoscale.exits.decoder import Decoder, DecoderOptions
from twoscale.exits.parallel import ParallelKV, evaluate
from twoscale.model.interface import LoopedModel
from twoscale.model.noise import EvaluationNoise

MAX_LOOPS = 5
OUROS = {"groups": [[2, 3]], "exit_gate": True, "num_kv_heads": 1, "positions": "rotary", "loop_noise": 0.1}


def waits(seen: Seen) -> Counter[str]:
    """File of twoscale/exits -> how often the host waited there; held-out noise is drawn on the host."""
    found = Counter()
    for place, times in seen.syncs.items():
        kind, _, path = place.rpartition(" ")
        if not path.startswith("model/noise"):
            found[f"{kind} {path.partition(':')[0]}"] += times
    return found


def never(name: str):
    return make_criterion(name, 100 if CRITERIA[name].larger_is_later else 1e-30)


def model_for(seen: Seen, name: str) -> LoopedModel:
    model = model_on(seen, "tiny", **(OUROS if CRITERIA[name].needs_gate else {}))
    seen.clear()
    return model


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_decides_on_one_device_after_the_other(name, tokens):
    criterion = make_criterion(name, 0.5)
    with fake_cuda() as seen:
        seen.value = lambda tensor: 1.0
        for device in ("cpu", "cuda", "cpu"):
            x = torch.zeros(tokens, 4, device=device)
            state = criterion.start(x)
            for _ in range(2):
                should_exit, state = criterion.update(state, x, lambda x: x[:, 0] if criterion.needs_gate else x)
            assert should_exit.device.type == device


LAYOUTS = ["fixed", "acceleration", "kl", "argmax_stability"]
OPTIONS = [{}, {"kv_slots": 2}, {"readout": "remaining_layers"}, {"warm_start": True}, {"steps_per_graph": 1}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_token_waits_only_for_its_decisions_if_loops_are_captured(options):
    """They come through pinned memory and an event, which is no operation on a tensor."""
    with gpu() as seen:
        # with an option, of criteria whose state has the same layout one is enough
        without_gate = LAYOUTS if options else [name for name in CRITERIA if name != "exit_gate"]
        for names in (without_gate, ["exit_gate"]):
            model = model_for(seen, names[0])
            decoder = Decoder(model, make_criterion("fixed", MAX_LOOPS), MAX_LOOPS, 0, DecoderOptions(**options))
            seen.clear()
            for name in names:
                decoder.reset(never(name))
                _, evaluations = decoder.feed(1)
                assert evaluations == [MAX_LOOPS] * len(model.config.groups)
            decoder.feed(1, evaluations)
            assert not waits(seen)


@pytest.mark.parametrize("name", CRITERIA)
def test_a_token_waits_for_each_decision_if_loops_are_eager(name):
    with gpu() as seen:
        model = model_for(seen, name)
        decoder = Decoder(model, never(name), MAX_LOOPS, 0, DecoderOptions(replay=False))
        decoder.feed(1)
        assert waits(seen) == {"value exits/contract.py": MAX_LOOPS * len(model.config.groups)}


@pytest.mark.parametrize("name", CRITERIA)
def test_a_text_read_in_parallel_waits_for_the_exits_of_a_step_only(name):
    with gpu() as seen:
        model = model_for(seen, name)
        tokens, noise = torch.zeros(2, 9, dtype=torch.int64, device="cuda"), EvaluationNoise.of(model.config, 0, [0, 1])
        evaluate(model, tokens, never(name), MAX_LOOPS, noise)
        steps = MAX_LOOPS * len(model.config.groups)
        assert waits(seen).keys() <= {"rows exits/parallel.py", "value exits/parallel.py"}
        assert waits(seen).total() <= 3 * steps  # exits, tokens that stay, and the most that a sequence has


def test_attention_of_the_tokens_that_still_loop_waits_once_for_their_number():
    with gpu() as seen:
        store, heads = ParallelKV(batch=2, length=9), torch.zeros(18, 2, 8, device="cuda")
        store.attend(0, torch.arange(18, device="cuda"))(1, heads, heads, heads)
        attend = store.attend(1, torch.arange(5, device="cuda"))
        assert attend(1, heads[:5], heads[:5], heads[:5]).shape == (5, 2, 8)
        assert waits(seen) == {"value exits/parallel.py": 1}


def test_a_criterion_that_reads_a_value_decides_after_each_graph():
    class Reads(CRITERIA["step_norm"]):
        def update(self, state, x_new, readout):
            should_exit, state = super().update(state, x_new, readout)
            return torch.full_like(should_exit, bool(should_exit)), state

    def refuse(tensor):
        raise RuntimeError("called a synchronizing CUDA operation")

    with gpu() as seen:
        model = model_on(seen, "tiny")
        seen.value = refuse
        with pytest.warns(UserWarning, match="Reads: cannot be captured in a CUDA graph .called a synchronizing"):
            decoder = Decoder(model, Reads(1e-30), MAX_LOOPS, 0)
        seen.value = default_value
        assert decoder.feed(1)[1] == [MAX_LOOPS] * len(model.config.groups)


@pytest.mark.parametrize("replay", [True, False])
def test_bfloat16_states_stay_bfloat16(replay):
    with gpu() as seen:
        model = model_on(seen, "tiny", torch.bfloat16)
        for name in ("kl", "acceleration", "entropy_diff"):
            decoder = Decoder(model, never(name), MAX_LOOPS, 0, DecoderOptions(replay=replay))
            logits, _ = decoder.feed(1)
            assert logits.dtype is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loop_step_has_few_kernels_as_it_is_and_at_most_twelve_a_layer_compiled(dtype):
    with gpu() as seen:
        model = model_on(seen, "paper", dtype)
        loops = Decoder(model, never("step_norm"), 3, 0)._loops
        for group, layers in enumerate(model.config.groups):
            assert of_step(seen, loops, group) <= 14 * len(layers) + 2
            compiled = of_compiled_step(seen, loops, group)
            assert compiled["extern"] == 5 * len(layers) + 1  # matrix products and attention
            assert compiled.total() <= 12 * len(layers)


def test_the_host_starts_few_kernels_of_a_token_outside_of_graphs():
    with gpu() as seen:
        model = model_on(seen, "paper")
        decoder = Decoder(model, never("acceleration"), MAX_LOOPS, 0)
        decoder.feed(1)
        assert kernels(seen, lambda: decoder.feed(1)) <= 26
