"""The contract of an exit criterion: both engines refuse what breaks it, in one sentence."""

import pytest
import torch

from tests.small import model_config
from twoscale.base import InputError
from twoscale.exits.contract import Decisions, load_criterion
from twoscale.exits.criteria import KL, Acceleration, ExitCriterion
from twoscale.exits.decoder import Decoder
from twoscale.exits.parallel import evaluate
from twoscale.model.noise import EvaluationNoise
from twoscale.model.transformer import initialise

SEED = 3
CONTEXT_LENGTH = 8
TOKENS = 6
MODEL = initialise(model_config(hidden_size=16, context_length=CONTEXT_LENGTH), 0).double()


def in_parallel(criterion):
    noise = EvaluationNoise(SEED, [0], CONTEXT_LENGTH)
    evaluate(MODEL, torch.zeros(1, TOKENS, dtype=torch.int64), criterion, 5, noise)


def in_decoding(criterion):
    Decoder(MODEL, criterion, 5, SEED).feed(0)


ENGINES = pytest.mark.parametrize(("run", "tokens"), [(in_parallel, TOKENS), (in_decoding, 1)])


def criterion_that(update=None, start=None):
    """A criterion of the step norm with another `update` or `start`: functions of (step, x_new) and of x0."""

    class Faulty(ExitCriterion):
        def start(self, x0):
            return {"x": x0} if start is None else start(x0)

        def update(self, state, x_new, readout):
            step = (x_new - state["x"]).norm(dim=-1)
            return (step < 1.0, {"x": x_new}) if update is None else update(step, x_new)

    return Faulty(1.0)


@ENGINES
@pytest.mark.parametrize(
    ("update", "found", "expected"),
    [
        (
            lambda step, x: (step.norm() < 1, {"x": x}),
            r"as should_exit a bool tensor of shape \(\) on cpu",
            r"a bool tensor of shape \({0},\)",
        ),
        (lambda step, x: (step, {"x": x}), r"as should_exit a float64 tensor", r"a bool tensor of shape \({0},\)"),
        (lambda step, x: ((step < 1)[:, None], {"x": x}), r"shape \({0}, 1\)", r"a bool tensor of shape \({0},\)"),
        (lambda step, x: (True, {"x": x}), "as should_exit a value of type bool", "a bool tensor"),
        (lambda step, x: None, "nothing", "a pair"),
        (lambda step, x: {"x": x, "y": x, "z": x}, "a value of type dict", "a pair"),
        (lambda step, x: (step < 1, x), r"as state a float64 tensor", "a dict"),
        (
            lambda step, x: (step < 1, {"x": x, "k": 1}),
            r"as state\['k'\] a value of type int",
            "a tensor whose first axis has",
        ),
        (
            lambda step, x: (step < 1, {"x": x, "mean": step.mean()}),
            r"as state\['mean'\] a float64 tensor of shape \(\)",
            "a tensor whose first axis has one entry per token, {0} here",
        ),
        (
            lambda step, x: (step < 1, {"x": x.T}),
            r"shape \(16, {0}\)",
            "a tensor whose first axis has one entry per token, {0} here",
        ),
    ],
    ids=["one number", "statistic", "column", "python bool", "nothing", "a dict", "state", "int", "scalar", "axis"],
)
def test_what_update_returns_is_refused_with_what_was_expected(run, tokens, update, found, expected):
    sentence = rf"^exit criterion Faulty\.update returned .*{found}.*, expected {expected}.*\.$".replace(
        "{0}", f"{tokens}"
    )
    with pytest.raises(InputError, match=sentence):
        run(criterion_that(update))


def weighted_that(update):
    criterion = criterion_that(update)
    type(criterion).keeps = "weighted"
    return criterion


@ENGINES
@pytest.mark.parametrize(
    ("update", "found", "expected"),
    [
        (lambda step, x: (step < 1, {"x": x}), "a value of type tuple", r"a triple \(should_exit, state, weight\)"),
        (lambda step, x: (step < 1, {"x": x}, None), "as weight nothing", r"a float64 tensor of shape \({0},\)"),
        (lambda step, x: (step < 1, {"x": x}, step[:, None]), r"as weight .*\({0}, 1\)", r".* of shape \({0},\)"),
        (lambda step, x: (step < 1, {"x": x}, step.float()), "as weight a float32 tensor", "a float64 tensor"),
        (lambda step, x: (step < 1, {"x": x}, step < 1), "as weight a bool tensor", "a float64 tensor"),
    ],
    ids=["pair", "nothing", "column", "float32", "bool"],
)
def test_the_weight_of_a_weighted_exit_is_one_number_per_token(run, tokens, update, found, expected):
    sentence = rf"^exit criterion Faulty\.update returned {found}.*, expected {expected}.*\.$"
    with pytest.raises(InputError, match=sentence.replace("{0}", f"{tokens}")):
        run(weighted_that(update))


@ENGINES
def test_a_weight_of_a_criterion_that_keeps_one_state_is_refused(run, tokens):
    with pytest.raises(InputError, match=r"expected a pair \(should_exit, state\)\.$"):
        run(criterion_that(lambda step, x: (step < 1, {"x": x}, step)))


def test_weights_of_a_mean_are_limited_to_what_is_left_of_one():
    weights = iter([0.5, -1.0, 0.75, 0.75])
    never = torch.zeros(2, dtype=torch.bool)
    states = torch.tensor([[1.0], [2.0], [4.0], [8.0]]).expand(4, 2)[..., None]
    criterion = weighted_that(lambda step, x: (never, {"x": x}, torch.full((2,), next(weights))))
    decisions, means = Decisions(criterion, torch.zeros(2, 1), None), []
    for x_new in states:
        decisions.update(x_new)
        means.append(decisions.result(x_new)[0].item())
    assert means == [1, 0.5 * 1 + 0.5 * 2, 0.5 * 1 + 0.5 * 4, 0.5 * 1 + 0.5 * 4]
    decisions.keep(torch.tensor([1]))
    assert decisions.result(states[-1, :1]).shape == (1, 1)


@ENGINES
@pytest.mark.parametrize(
    ("start", "found"),
    [(lambda x0: x0, "as state a float64 tensor"), (lambda x0: {"x": x0[:0]}, r"as state\['x'\] .* \(0, 16\)")],
    ids=["no dict", "axis"],
)
def test_what_start_returns_is_refused_with_what_was_expected(run, tokens, start, found):
    with pytest.raises(
        InputError,
        match=rf"^exit criterion Faulty\.start returned {found}.*first axis has one entry per token, {tokens}",
    ):
        run(criterion_that(start=start))


@ENGINES
def test_a_decision_that_changes_its_shape_later_is_refused(run, tokens):
    calls = []

    def update(step, x_new):
        calls.append(step)
        return (step < 0 if len(calls) < 3 else (step < 0).any()), {"x": x_new}

    with pytest.raises(InputError, match=r"as should_exit a bool tensor of shape \(\)"):
        run(criterion_that(update))
    assert len(calls) == 3


@pytest.mark.gpu
def test_a_decision_on_another_device_is_refused():
    x = torch.zeros(2, 3, device="cuda")
    with pytest.raises(InputError, match=r"a bool tensor of shape \(2,\) on cpu, expected .* on cuda"):
        Decisions(criterion_that(lambda step, x: ((step < 1).cpu(), {"x": x})), x, None).update(x)


def test_the_keys_of_the_state_may_change_at_the_first_update_only():
    x = torch.zeros(3, 2)
    stays = torch.tensor([0, 2])
    decisions = Decisions(KL(1.0), x, lambda state: state)
    assert list(decisions.state) == ["x0"]
    decisions.update(x)
    decisions.keep(stays)
    assert [(name, len(rows)) for name, rows in decisions.state.items()] == [("log_p", 2)]

    later = iter([{"x": x}, {"x": x, "new": x}])
    decisions = Decisions(criterion_that(lambda step, x_new: (step < 1, next(later))), x, None)
    decisions.update(x)
    decisions.update(x)
    with pytest.raises(InputError, match="returned a state with the keys x, new, expected x as in the first update"):
        decisions.keep(stays)


def test_after_rows_are_dropped_the_decision_has_as_many_as_are_left():
    x = torch.zeros(3, 2)
    decisions = Decisions(Acceleration(1.0), x, None)
    decisions.update(x)
    decisions.keep(torch.tensor([0, 2]))
    assert decisions.update(x[:2]).shape == (2,)


CRASH = """from twoscale.exits.criteria import ExitCriterion


class Crash(ExitCriterion):
    def start(self, x0):
        return {"x": x0}

    def update(self, state, x_new, readout):
        return self.decide(x_new), {"x": x_new}

    def decide(self, x_new):
        return {}["missing"]
"""


@ENGINES
def test_an_exception_of_a_users_criterion_is_one_sentence_with_its_line(run, tokens, tmp_path):
    (tmp_path / "crash.py").write_text(CRASH)
    with pytest.raises(InputError) as caught:
        run(load_criterion(str(tmp_path / "crash.py"), "Crash")(1.0))
    where = f"exit criterion file {tmp_path}/crash.py, line 12"
    assert str(caught.value) == f"{where}: Crash.update raised KeyError: 'missing', expected no exception."


@ENGINES
def test_a_fault_in_a_users_file_names_the_file(run, tokens, tmp_path):
    (tmp_path / "crash.py").write_text(CRASH.replace('{}["missing"]', "x_new.norm() < 1"))
    with pytest.raises(InputError, match=r"^exit criterion file .*/crash\.py: Crash\.update returned as should_exit"):
        run(load_criterion(str(tmp_path / "crash.py"), "Crash")(1.0))


@ENGINES
def test_an_exception_of_a_criterion_without_a_file_is_not_changed(run, tokens):
    def update(step, x_new):
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        run(criterion_that(update))
