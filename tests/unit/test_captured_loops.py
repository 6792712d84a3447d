"""Loops whose steps and decisions are replayed from fixed memory: the same function as the eager
decoder.
"""

import gc
import warnings
from functools import partial
from unittest.mock import patch

import pytest
import torch

from tests.fake_cuda import fake_cuda
from tests.tape import TapeGraphs
from tests.unit.test_engine import (
    MAX_LOOPS,
    PUBLISHED,
    LeaveBySign,
    Remembering,
    assert_close,
    assert_decodes,
    decode_text,
    make_decoder,
    noise_of,
    ragged_threshold,
    small_model,
    text,
)
from twoscale.exits import captured_loops
from twoscale.exits.criteria import CRITERIA, make_criterion


@pytest.fixture
def tape(monkeypatch):
    """Graphs are recorded and replayed, so nothing but fixed memory connects one replay with the
    next.
    """
    monkeypatch.setattr(captured_loops, "Graphs", lambda on_cuda: TapeGraphs())


def criterion_of(name, model, tokens):
    return make_criterion(name, ragged_threshold(name, model, tokens[None], noise_of(0)))


def assert_same(model, criterion, tokens, **options):
    """Captured and eager decoding agree on logits, exits, and keys and values; the evaluations (G,
    T).
    """
    plain = make_decoder(model, criterion, replay=False, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "exit")  # nothing is left out of the graphs
        captured = make_decoder(model, criterion, replay=True, **options)
    for stored in captured.cache.stored.values():  # a text before has overflowed
        stored.fill_(torch.inf)
    expected, taken = decode_text(plain, tokens)
    for _ in range(2):  # the second text finds the memory of the first
        captured.reset()
        assert_decodes(captured, tokens, expected, taken)
        for layer, stored in plain.cache.stored.items():  # what was run ahead is overwritten
            assert_close(captured.cache.stored[layer], stored)
    return taken


VARIED = {"loop_noise": 0.3, "exit_norm": "final_norm"}
OPTIONS = [{}, {"kv_slots": 2}, {"warm_start": True}, {"readout": "remaining_layers"}]
OPTIONS += [{"steps_per_graph": steps} for steps in (1, 3, 10)]
CASES = [(name, {"steps_per_graph": 2}) for name in CRITERIA]
CASES += [(name, options) for name in ("acceleration", "kl") for options in OPTIONS]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_replays_of_captured_loops_are_the_same_function(name, options, tape):
    """Also where the loop steps of a token are no multiple of those of a graph."""
    model, tokens = small_model(**VARIED), text(1, 9)[0]
    assert_same(model, criterion_of(name, model, tokens), tokens, **options)


@pytest.mark.parametrize("variant", PUBLISHED)
def test_replays_of_published_architectures_are_the_same_function(variant, tape):
    model, tokens = small_model(**PUBLISHED[variant]), text(1, 9)[0]
    assert_same(model, criterion_of("acceleration", model, tokens), tokens, steps_per_graph=2)


@pytest.mark.parametrize("patience", [1, 3])
@pytest.mark.parametrize("keeps", ["previous", "new"])
def test_patience_and_what_a_token_keeps_cross_the_ends_of_graphs(keeps, patience, tape):
    patient = type("Patient", (CRITERIA["step_norm"],), {"keeps": keeps, "patience": patience})
    model, tokens = small_model(), text(1, 9)[0]
    threshold = ragged_threshold("step_norm", model, tokens[None], noise_of(0))
    taken = assert_same(model, patient(threshold), tokens, steps_per_graph=2)
    assert set((taken % 2).unique().tolist()) == {0, 1}


@pytest.mark.parametrize(
    "criterion", [LeaveBySign(1.0), Remembering(4.5)], ids=["by sign", "growing state"]
)
def test_states_of_a_users_criterion_pass_from_graph_to_graph(criterion, tape):
    assert len(assert_same(small_model(), criterion, text(1, 9)[0], steps_per_graph=2).unique()) > 1


def test_a_text_that_was_read_in_parallel_goes_on_under_another_criterion(tape):
    model, tokens = small_model(), text(1, 9)[0]
    first, then = criterion_of("kl", model, tokens), criterion_of("acceleration", model, tokens)
    results = []
    for replay in (False, True):
        decoder = make_decoder(model, first, replay=replay)
        decoder.prefill(tokens[:5].tolist())
        before, _ = decode_text(decoder, tokens[5:7])
        decoder.rewind(4)
        decoder.criterion = then
        results.append((before, *decode_text(decoder, tokens[4:])))
    for expected, found in zip(*results, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("size", [1, 4])
def test_the_baseline_of_captured_loops_runs_exactly_its_evaluations(size, tape):
    model, tokens = small_model(**VARIED), text(1, 9)[0]
    wanted = torch.randint(
        1, MAX_LOOPS + 1, (9, 3), generator=torch.Generator().manual_seed(0)
    ).tolist()
    criterion = make_criterion("fixed", MAX_LOOPS)
    plain, captured = (
        make_decoder(model, criterion, replay=replay, steps_per_graph=size)
        for replay in (False, True)
    )
    for token, evaluations in zip(tokens.tolist(), wanted, strict=True):
        assert_close(captured.feed(token, evaluations)[0], plain.feed(token, evaluations)[0])


class ReadsAValue(CRITERIA["step_norm"]):
    """A criterion as a user may write it: the host looks at a value in every step."""

    def update(self, state, x_new, readout):
        if float((x_new - state["x"]).norm()) < self.threshold:
            return torch.tensor([True]), {"x": x_new}
        return torch.tensor([False]), {"x": x_new}


def test_a_criterion_that_waits_for_the_device_is_refused(tape):
    with pytest.raises(RuntimeError, match="synchronizing"):
        make_decoder(small_model(), ReadsAValue(1.0), replay=True)


def test_a_loop_step_that_cannot_be_compiled_is_captured_as_it_is(tape, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: fails)
    model, tokens = small_model(), text(1, 9)[0]
    criterion = criterion_of("kl", model, tokens)
    expected, taken = decode_text(make_decoder(model, criterion, replay=False), tokens)
    with pytest.warns(
        UserWarning,
        match=r"exits\.compile: loop steps are captured without compilation \(no compiler",
    ):
        decoder = make_decoder(model, criterion, replay=True, compile=True)
    assert_decodes(decoder, tokens, expected, taken)


class RefusesOnce(TapeGraphs):
    """CUDA refuses one capture, in the middle of those that continue each other."""

    def __init__(self, number: int) -> None:
        self.left = number

    def capture(self, function):
        self.left -= 1
        if self.left == 0:
            function()
            raise RuntimeError("operation failed due to a previous error during capture")
        return super().capture(function)


@pytest.mark.parametrize("number", [1, 3, 9, 14])
def test_captures_that_continue_each_other_are_repeated_if_one_is_refused(number, monkeypatch):
    model, tokens = small_model(**VARIED), text(1, 9)[0]
    criterion = criterion_of(
        "acceleration", model, tokens
    )  # its decisions carry a state from graph to graph
    expected, taken = decode_text(make_decoder(model, criterion, replay=False), tokens)
    monkeypatch.setattr(captured_loops, "Graphs", lambda on_cuda: RefusesOnce(number))
    with pytest.warns(
        UserWarning, match=r"a capture is repeated \(operation failed due to a previous error"
    ):
        decoder = make_decoder(model, criterion, replay=True, steps_per_graph=2)
    assert_decodes(decoder, tokens, expected, taken)


def test_after_a_refused_capture_the_allocator_is_told_and_the_next_one_has_other_memory():
    with fake_cuda(), patch.object(torch._C, "_cuda_endAllocateToPool", create=True) as ended:
        torch.cuda.graph_pool_handle.side_effect = ["first", "second"]
        graphs, graph = captured_loops.Graphs(True), torch.cuda.CUDAGraph.return_value
        graph.capture_end.side_effect = [RuntimeError("a previous error during capture"), None]
        with pytest.raises(RuntimeError, match="previous error"):
            graphs.capture(lambda: 1)
        assert gc.isenabled()
        ended.assert_called_once_with(0, "first")
        assert graphs.capture(lambda: 2).call() == 2
    assert [call.kwargs["pool"] for call in graph.capture_begin.call_args_list] == [
        "first",
        "second",
    ]


def test_loop_steps_that_are_compiled_and_captured_are_the_same_function(monkeypatch):
    """Up to the code generator, which takes minutes; `test_fake_cuda.py` counts what it would
    launch.
    """
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    model, tokens = small_model(groups=[[2, 3], [4]], **VARIED), text(1, 9)[0]
    assert_same(model, criterion_of("acceleration", model, tokens), tokens, compile=True)
    assert len(compiled) == len(model.groups)  # one serves all loop steps, graphs and positions
